#include "cli/engine_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <filesystem>

#include "fullshard/base/error.h"

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

int run_in_engine(const char* entry_point, const std::string& json) {
  // Never unloaded: threads of it may still run when the call has ended.
  void* library = load_library();
  if (library == nullptr) {
    const auto places = usual_places();
    fail(fmt::format("cannot find {} in {} or {}; build or install the engine there", kLibrary,
                     places[0].string(), places[1].string()));
  }
  void* symbol = ::dlsym(library, entry_point);
  if (symbol == nullptr) fail(fmt::format("{} is of another version: {}", kLibrary, ::dlerror()));
  return reinterpret_cast<int (*)(const char*)>(symbol)(json.c_str());
}

}  // namespace fullshard::cli
