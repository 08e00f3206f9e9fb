#pragma once

#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "comm/device/plugin.h"

namespace fullshard::comm::device {

inline constexpr const char* kPluginLibrary = "libfullshard_cuda.so";

/// Folders where the plugin is looked for: beside the library, or the program, that this code is
/// in.
std::vector<std::filesystem::path> plugin_places();

/// Loads the plugin from the first of `places` that has it, else from where the dynamic linker
/// finds it, and checks that it fits this build and `torch`, the version of libtorch here. It stays
/// loaded until the process ends; loading it again is cheap.
///
/// Throws base::Error: kFile when there is none, naming the places, or when it cannot be loaded,
/// with the linker's words, which name a library that is missing; kConfiguration when it is of
/// another build.
const Plugin& load_plugin(std::span<const std::filesystem::path> places, std::string_view torch);

}  // namespace fullshard::comm::device
