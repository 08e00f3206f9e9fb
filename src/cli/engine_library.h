#pragma once

#include <string>

namespace fullshard::cli {

/// Loads libfullshard.so, from ../lib beside the executable's folder or from that folder itself,
/// and calls one of its entry points (fullshard/engine/entry.h) in this process; returns the exit
/// code. Throws base::Error(kFile) that names the places where the library was looked for, or what
/// the loader says is wrong with it.
int run_in_engine(const char* entry_point, const std::string& json);

/// Path of the running executable, links resolved.
std::string own_path();

}  // namespace fullshard::cli
