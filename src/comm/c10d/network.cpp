#include "comm/c10d/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>

namespace fullshard::comm::c10d {
namespace {

std::string text_of(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* bytes = nullptr;
  if (address->sa_family == AF_INET) {
    bytes = &reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
  } else if (address->sa_family == AF_INET6) {
    bytes = &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  }
  if (bytes == nullptr) return "";
  return inet_ntop(address->sa_family, bytes, text.data(), text.size()) == nullptr ? ""
                                                                                   : text.data();
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  // The discard service: a port is needed to connect, and nothing is sent.
  if (getaddrinfo(host.c_str(), "9", &hints, &found) != 0) found = nullptr;
  return {found, &freeaddrinfo};
}

std::vector<std::string> addresses_of(const std::string& host) {
  std::vector<std::string> addresses;
  const AddressList list = resolve(host);
  for (const addrinfo* at = list.get(); at != nullptr; at = at->ai_next) {
    addresses.push_back(text_of(at->ai_addr));
  }
  return addresses;
}

// Connecting a datagram socket makes the kernel choose the route, and with it the own address.
std::optional<std::string> own_address_towards(const std::string& host) {
  const AddressList list = resolve(host);
  for (const addrinfo* at = list.get(); at != nullptr; at = at->ai_next) {
    const int fd = socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    auto* own_address = reinterpret_cast<sockaddr*>(&own);
    const bool found =
        connect(fd, at->ai_addr, at->ai_addrlen) == 0 && getsockname(fd, own_address, &length) == 0;
    close(fd);
    if (found) return text_of(own_address);
  }
  return std::nullopt;
}

std::vector<InterfaceAddress> interface_addresses() {
  std::vector<InterfaceAddress> addresses;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return addresses;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first, &freeifaddrs);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
      if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != family) continue;
      const std::string address = text_of(at->ifa_addr);
      const bool link_local = family == AF_INET6 && address.rfind("fe80:", 0) == 0;
      if ((at->ifa_flags & IFF_UP) != 0 && !link_local)
        addresses.push_back({at->ifa_name, address});
    }
  }
  return addresses;
}

}  // namespace

Network Network::of_this_host() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) name.front() = '\0';
  return {name.data(), addresses_of(name.data()), interface_addresses(), own_address_towards};
}

bool is_loopback(const std::string& address) {
  return address.rfind("127.", 0) == 0 || address == "::1" || address.rfind("::ffff:127.", 0) == 0;
}

}  // namespace fullshard::comm::c10d
