// Which address a rank gives to the others, on made-up hosts.

#include "comm/c10d/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/errors.h"

namespace fullshard::comm::testing {
namespace {

using base::ErrorCode;
using c10d::AddressRequest;
using c10d::choose_address;
using c10d::Network;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A host named alpha with a cable (eth0) and a fast network (ib0).
Network alpha() {
  Network network;
  network.host_name = "alpha";
  network.host_addresses = {"10.0.0.5"};
  network.addresses = {
      {"lo", "127.0.0.1"}, {"eth0", "10.0.0.5"}, {"ib0", "192.168.7.5"}, {"lo", "::1"}};
  network.address_towards = [](const std::string& host) -> std::optional<std::string> {
    if (host == "beta") return "10.0.0.5";
    if (host == "storage") return "192.168.7.5";
    if (host == "localhost" || host == "alpha-at-home") return "127.0.0.1";
    return std::nullopt;
  };
  return network;
}

AddressRequest several_hosts(const std::string& master) {
  return {.interface = "", .environment = "", .master = master, .several_hosts = true};
}

TEST(Address, TheNamedInterfaceWinsOverTheEnvironmentAndThatOverTheRoute) {
  AddressRequest request = several_hosts("beta");
  EXPECT_EQ(choose_address(request, alpha()).address, "10.0.0.5");
  request.environment = "lo";
  EXPECT_EQ(choose_address(request, alpha()).address, "127.0.0.1");
  request.interface = "en0,ib0";
  EXPECT_EQ(choose_address(request, alpha()).address, "192.168.7.5");
  EXPECT_EQ(choose_address(request, alpha()).warning, "");
}

TEST(Address, AnInterfaceThatIsNotThereIsNamedWithThoseThatAre) {
  AddressRequest request = several_hosts("beta");
  request.environment = "eth1";
  const auto error =
      expect_error(ErrorCode::kConfiguration, [&] { choose_address(request, alpha()); });
  EXPECT_THAT(std::string(error.what()), AllOf(HasSubstr("GLOO_SOCKET_IFNAME"), HasSubstr("'eth1'"),
                                               HasSubstr("alpha"), HasSubstr("ib0 (192.168.7.5)")));
}

TEST(Address, TheRouteToTheMasterIsTakenWithoutAWord) {
  EXPECT_EQ(choose_address(several_hosts("beta"), alpha()).warning, "");
  EXPECT_EQ(choose_address(several_hosts("storage"), alpha()).address, "192.168.7.5");
}

TEST(Address, M12AHostNameOnLoopbackIsNotTakenAndTheChoiceIsNamed) {
  Network network = alpha();
  network.host_addresses = {"127.0.1.1"};
  const auto choice = choose_address(several_hosts("beta"), network);
  EXPECT_EQ(choice.address, "10.0.0.5");
  EXPECT_THAT(choice.warning,
              AllOf(HasSubstr("alpha resolves to 127.0.1.1"), HasSubstr("uses 10.0.0.5 of eth0"),
                    HasSubstr("GLOO_SOCKET_IFNAME")));
  network.host_addresses.clear();
  EXPECT_THAT(choose_address(several_hosts("beta"), network).warning,
              HasSubstr("does not resolve"));
}

TEST(Address, M12AMasterOnLoopbackIsNoWayToOtherHosts) {
  for (const char* master : {"localhost", "alpha-at-home", "nowhere", ""}) {
    const auto choice = choose_address(several_hosts(master), alpha());
    EXPECT_EQ(choice.address, "10.0.0.5") << master;
    EXPECT_THAT(choice.warning, HasSubstr("uses 10.0.0.5 of eth0"));
  }
}

TEST(Address, OnOneHostLoopbackIsRight) {
  Network network = alpha();
  network.host_addresses = {"127.0.1.1"};
  AddressRequest request = several_hosts("localhost");
  request.several_hosts = false;
  EXPECT_EQ(choose_address(request, network).address, "127.0.0.1");
  EXPECT_EQ(choose_address(request, network).warning, "");
  request.master = "";
  EXPECT_EQ(choose_address(request, network).address, "127.0.0.1");
}

TEST(Address, AHostWithoutANetworkSaysSo) {
  Network network = alpha();
  network.addresses = {{"lo", "127.0.0.1"}};
  const auto error = expect_error(ErrorCode::kConfiguration,
                                  [&] { choose_address(several_hosts("localhost"), network); });
  EXPECT_THAT(std::string(error.what()), HasSubstr("no network address that others can reach"));
}

TEST(Address, ThisHostHasALoopbackInterface) {
  const Network here = Network::of_this_host();
  EXPECT_FALSE(here.host_name.empty());
  EXPECT_TRUE(std::any_of(here.addresses.begin(), here.addresses.end(), [](const auto& known) {
    return known.interface == "lo" && c10d::is_loopback(known.address);
  }));
  EXPECT_EQ(here.address_towards("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(here.address_towards("name.invalid"), std::nullopt);
}

}  // namespace
}  // namespace fullshard::comm::testing
