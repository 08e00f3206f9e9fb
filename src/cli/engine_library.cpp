#include "cli/engine_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <filesystem>

#include "fullshard/base/error.h"
#include "fullshard/engine/entry.h"

namespace fullshard::cli {
namespace {

constexpr const char* kLibrary = "libfullshard.so";

[[noreturn]] void fail(const std::string& message) {
  throw base::Error(base::ErrorCode::kFile, message);
}

std::array<std::filesystem::path, 2> usual_places() {
  const std::filesystem::path folder = std::filesystem::path(own_path()).parent_path();
  return {folder.parent_path() / "lib", folder};
}

void* load_library() {
  // Lazily: libtorch refers to CUDA functions that no process without CUDA calls.
  constexpr int kFlags = RTLD_LAZY | RTLD_LOCAL;
  for (const auto& place : usual_places()) {
    if (!std::filesystem::exists(place / kLibrary)) continue;
    void* library = ::dlopen((place / kLibrary).c_str(), kFlags);
    if (library == nullptr) fail(fmt::format("cannot load {}: {}", kLibrary, ::dlerror()));
    return library;
  }
  // Where the installer or LD_LIBRARY_PATH says.
  return ::dlopen(kLibrary, kFlags);
}

}  // namespace

std::string own_path() { return std::filesystem::read_symlink("/proc/self/exe"); }

int train_in_this_process(const std::string& effective_config_json) {
  // Never unloaded: threads of it may still run when training has ended.
  void* library = load_library();
  if (library == nullptr) {
    const auto places = usual_places();
    fail(fmt::format("cannot find {} in {} or {}; build or install the engine there", kLibrary,
                     places[0].string(), places[1].string()));
  }
  void* symbol = ::dlsym(library, "fullshard_engine_train");
  if (symbol == nullptr) fail(fmt::format("{} is of another version: {}", kLibrary, ::dlerror()));
  const auto train = reinterpret_cast<decltype(&fullshard_engine_train)>(symbol);
  return train(effective_config_json.c_str());
}

}  // namespace fullshard::cli
