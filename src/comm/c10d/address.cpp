#include "comm/c10d/address.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "fullshard/base/error.h"

namespace fullshard::comm::c10d {
namespace {

using base::Error;
using base::ErrorCode;

constexpr const char* kHowToChoose =
    "set comm.interface or the environment variable GLOO_SOCKET_IFNAME to choose another";

std::vector<std::string> names_in(const std::string& list) {
  std::vector<std::string> names(1);
  for (const char c : list) {
    if (c == ',') {
      names.emplace_back();
    } else {
      names.back() += c;
    }
  }
  return names;
}

std::string list_interfaces(const Network& network) {
  std::string text;
  for (const auto& [interface, address] : network.addresses) {
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", interface, address);
  }
  return text.empty() ? "none" : text;
}

std::string interface_of(const std::string& address, const Network& network) {
  for (const auto& known : network.addresses) {
    if (known.address == address) return known.interface;
  }
  return "an unknown interface";
}

std::string address_of_named(const std::string& list, const char* source, const Network& network) {
  for (const std::string& name : names_in(list)) {
    for (const auto& known : network.addresses) {
      if (known.interface == name) return known.address;
    }
  }
  throw Error(ErrorCode::kConfiguration,
              fmt::format("{} names the network interface '{}', which host {} does not have, or "
                          "which has no address; it has {}",
                          source, list, network.host_name, list_interfaces(network)));
}

std::string any_reachable_address(const Network& network) {
  for (const auto& known : network.addresses) {
    if (!is_loopback(known.address)) return known.address;
  }
  throw Error(ErrorCode::kConfiguration,
              fmt::format("the ranks are on several hosts, but host {} has no network address that "
                          "others can reach; it has {}",
                          network.host_name, list_interfaces(network)));
}

bool all_loopback(const std::vector<std::string>& addresses) {
  return std::all_of(addresses.begin(), addresses.end(), is_loopback);
}

}  // namespace

AddressChoice choose_address(const AddressRequest& request, const Network& network) {
  if (!request.interface.empty()) {
    return {address_of_named(request.interface, "comm.interface", network), ""};
  }
  if (!request.environment.empty()) {
    return {address_of_named(request.environment, "GLOO_SOCKET_IFNAME", network), ""};
  }
  const auto towards =
      request.master.empty() ? std::nullopt : network.address_towards(request.master);
  if (!request.several_hosts) return {towards.value_or("127.0.0.1"), ""};
  AddressChoice choice;
  const bool routed = towards && !is_loopback(*towards);
  choice.address = routed ? *towards : any_reachable_address(network);
  const std::string chosen =
      fmt::format("this rank uses {} of {}", choice.address, interface_of(choice.address, network));
  if (!routed) {
    choice.warning = fmt::format(
        "the way to the store at '{}' {}, where ranks on other hosts cannot reach this one; {}; {}",
        request.master, towards ? "is the loopback interface" : "is not known", chosen,
        kHowToChoose);
  } else if (all_loopback(network.host_addresses)) {
    choice.warning = fmt::format(
        "the host name {} {}; {}, on the way to the store at '{}'; {}", network.host_name,
        network.host_addresses.empty() ? "does not resolve"
                                       : "resolves to " + network.host_addresses.front(),
        chosen, request.master, kHowToChoose);
  }
  return choice;
}

}  // namespace fullshard::comm::c10d
