#include "launcher/listener.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

#include "fullshard/base/error.h"

namespace fullshard::launcher {
namespace {

constexpr int kBacklog = 1024;  // every rank of the largest job connects at once

[[noreturn]] void fail_port(std::uint16_t port) {
  if (errno == EADDRINUSE) {
    throw base::Error(base::ErrorCode::kSystem,
                      fmt::format("port {} of 127.0.0.1 is in use; give another "
                                  "--job.master_port, or 0 for any free one",
                                  port));
  }
  fail_errno(fmt::format("listen on port {} of 127.0.0.1", port));
}

}  // namespace

Listener listen_on(std::uint16_t port) {
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.open()) fail_errno("create a socket");
  // Connections of an earlier job that still linger must not keep its port from being used again.
  const int yes = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket.get(), generic, sizeof(address)) != 0) fail_port(port);
  if (::listen(socket.get(), kBacklog) != 0) fail_port(port);
  socklen_t size = sizeof(address);
  if (::getsockname(socket.get(), generic, &size) != 0) fail_errno("read a socket's port");
  return {std::move(socket), ntohs(address.sin_port)};
}

}  // namespace fullshard::launcher
