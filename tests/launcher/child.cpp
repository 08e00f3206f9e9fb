// A rank for the launcher's tests: does one thing that a shell script cannot.
//   launcher_child report CODE MESSAGE   reports an error as the engine does, and fails
//   launcher_child exchange              rank 0 greets every other rank through MASTER_PORT
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "fullshard/base/error.h"
#include "fullshard/base/error_report.h"
#include "fullshard/launcher/launch.h"

namespace {

using namespace fullshard;

constexpr char kGreeting = 'h';

int number(const char* variable) { return std::atoi(std::getenv(variable)); }

base::ErrorCode code_of(const std::string& name) {
  for (int code = 0; code <= static_cast<int>(base::ErrorCode::kInternal); ++code) {
    if (base::to_string(static_cast<base::ErrorCode>(code)) == name) {
      return static_cast<base::ErrorCode>(code);
    }
  }
  std::abort();
}

int report(const std::string& code, const std::string& message) {
  base::report_error(base::Error(code_of(code), message));
  return 1;
}

int greet_all(int listener, int others) {
  for (int i = 0; i < others; ++i) {
    const int peer = ::accept(listener, nullptr, nullptr);
    if (peer < 0 || ::write(peer, &kGreeting, 1) != 1) return 1;
    ::close(peer);
  }
  return 0;
}

int be_greeted() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(number("MASTER_PORT")));
  ::inet_pton(AF_INET, std::getenv("MASTER_ADDR"), &address.sin_addr);
  const int peer = ::socket(AF_INET, SOCK_STREAM, 0);
  if (::connect(peer, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return 1;
  char greeting = 0;
  return ::read(peer, &greeting, 1) == 1 && greeting == kGreeting ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "report" && argc == 4) return report(argv[2], argv[3]);
  if (what != "exchange") return 2;
  if (number("RANK") != 0) return be_greeted();
  return greet_all(number(launcher::kStoreFdVariable), number("WORLD_SIZE") - 1);
}
