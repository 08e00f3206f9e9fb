#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace fullshard::comm::c10d {

/// An address of a network interface of this host, as text: "10.0.0.5", "fd00::1".
struct InterfaceAddress {
  std::string interface;
  std::string address;
};

/// What this host knows of its networks; a value, so that tests can make up others.
struct Network {
  std::string host_name;
  /// Of the host's own name; empty when it does not resolve.
  std::vector<std::string> host_addresses;
  /// Of all interfaces that are up; IPv4 before IPv6, link-local ones left out.
  std::vector<InterfaceAddress> addresses;
  /// The own address from which packets to `host` leave; nothing when it does not resolve or cannot
  /// be reached. Sends nothing.
  std::function<std::optional<std::string>(const std::string& host)> address_towards;

  /// As the operating system sees it now.
  static Network of_this_host();
};

/// Whether only this host can reach the address.
bool is_loopback(const std::string& address);

}  // namespace fullshard::comm::c10d
