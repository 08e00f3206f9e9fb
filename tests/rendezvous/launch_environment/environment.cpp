#include "rendezvous/launch_environment/environment.h"

#include <gtest/gtest.h>

#include "fullshard/base/error.h"

namespace fullshard::rendezvous {

LaunchEnvironment read(const Environment& environment, const LaunchFlags& flags) {
  return LaunchEnvironment::read(
      [&](const char* name) -> const char* {
        const auto found = environment.find(name);
        return found == environment.end() ? nullptr : found->second.c_str();
      },
      flags);
}

Environment merged(Environment first, const Environment& second) {
  first.insert(second.begin(), second.end());
  return first;
}

std::string source_of(const LaunchEnvironment& env, const std::string& field) {
  for (const auto& source : env.sources) {
    if (source.field == field) return source.from;
  }
  return "nowhere";
}

void expect_refused(const Environment& environment,
                    const ::testing::Matcher<std::string>& message) {
  try {
    read(environment);
    ADD_FAILURE() << "was accepted";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::ErrorCode::kConfiguration);
    EXPECT_THAT(std::string(error.what()), message);
  }
}

}  // namespace fullshard::rendezvous
