#include "comm/device/plugin_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

#include "fullshard/base/error.h"

namespace fullshard::comm::device {
namespace {

using base::Error;
using base::ErrorCode;

// All at once: a library that is missing is named here, not in the middle of a training step.
constexpr int kFlags = RTLD_NOW | RTLD_LOCAL;

std::string names_of(std::span<const std::filesystem::path> places) {
  std::string names;
  for (const auto& place : places) names += (names.empty() ? "" : ", ") + place.string();
  return names;
}

void* open(const std::string& file) {
  void* library = ::dlopen(file.c_str(), kFlags);
  if (library != nullptr) return library;
  throw Error(ErrorCode::kFile,
              fmt::format("cannot load the GPU plugin: {}; CUDA's libraries must lie where torch's "
                          "wheel expects them, where the plugin was built to look, or in a folder "
                          "of LD_LIBRARY_PATH",
                          ::dlerror()));
}

void* find(std::span<const std::filesystem::path> places) {
  for (const auto& place : places) {
    if (std::filesystem::exists(place / kPluginLibrary)) return open(place / kPluginLibrary);
  }
  if (void* library = ::dlopen(kPluginLibrary, kFlags)) return library;
  const std::string reason = ::dlerror();
  if (reason.find(std::string(kPluginLibrary) + ": cannot open") == std::string::npos) {
    open(kPluginLibrary);  // it is there and does not load
  }
  throw Error(ErrorCode::kFile,
              fmt::format("the GPU plugin {} is neither in {} nor where the dynamic linker looks; "
                          "build fullshard with -DFULLSHARD_CUDA=ON",
                          kPluginLibrary, names_of(places)));
}

std::string path_of(void* symbol) {
  Dl_info info{};
  return ::dladdr(symbol, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

}  // namespace

std::vector<std::filesystem::path> plugin_places() {
  const std::filesystem::path here = path_of(reinterpret_cast<void*>(&plugin_places));
  std::error_code ignored;
  const auto folder = std::filesystem::absolute(here, ignored).parent_path();
  return {folder, folder.parent_path() / "lib"};
}

const Plugin& load_plugin(std::span<const std::filesystem::path> places, std::string_view torch) {
  void* symbol = ::dlsym(find(places), kPluginSymbol);
  if (symbol == nullptr) {
    throw Error(ErrorCode::kConfiguration,
                fmt::format("{} is no plugin of fullshard: {}", kPluginLibrary, ::dlerror()));
  }
  const Plugin* plugin = reinterpret_cast<PluginEntry>(symbol)();
  const std::string_view version = plugin->version;
  if (version != FULLSHARD_VERSION) {
    throw Error(ErrorCode::kConfiguration,
                fmt::format("{} is of fullshard {}, and this is {}; build both together",
                            path_of(symbol), version, FULLSHARD_VERSION));
  }
  if (plugin->torch != torch) {
    throw Error(ErrorCode::kConfiguration,
                fmt::format("{} was built against libtorch {}, and this is {}; build both against "
                            "one libtorch",
                            path_of(symbol), plugin->torch, torch));
  }
  return *plugin;
}

}  // namespace fullshard::comm::device
