#pragma once

#include <gmock/gmock.h>

#include <map>
#include <string>

#include "fullshard/rendezvous/launch_environment.h"

namespace fullshard::rendezvous {

/// An environment of the test's own.
using Environment = std::map<std::string, std::string>;

LaunchEnvironment read(const Environment& environment, const LaunchFlags& flags = {});

Environment merged(Environment first, const Environment& second);

/// Where the field's value was found, "nowhere" when it was not.
std::string source_of(const LaunchEnvironment& env, const std::string& field);

/// Reading must throw kConfiguration with such a message.
void expect_refused(const Environment& environment, const ::testing::Matcher<std::string>& message);

}  // namespace fullshard::rendezvous
