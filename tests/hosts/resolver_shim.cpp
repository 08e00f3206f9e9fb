// To be loaded before a program (LD_PRELOAD): the host is called FULLSHARD_TEST_HOST_NAME, and that
// name resolves to FULLSHARD_TEST_HOST_ADDRESS, or to nothing when that is empty.

#include <dlfcn.h>
#include <netdb.h>

#include <cstdlib>
#include <cstring>

namespace {

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

const char* host_name() { return variable("FULLSHARD_TEST_HOST_NAME"); }

}  // namespace

extern "C" int gethostname(char* name, size_t length) noexcept {
  std::strncpy(name, host_name(), length);
  return 0;
}

extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  using Function = decltype(&getaddrinfo);
  static const auto original = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "getaddrinfo"));
  if (node == nullptr || std::strcmp(node, host_name()) != 0) {
    return original(node, service, hints, found);
  }
  const char* const address = variable("FULLSHARD_TEST_HOST_ADDRESS");
  return *address == '\0' ? EAI_NONAME : original(address, service, hints, found);
}
