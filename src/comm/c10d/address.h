#pragma once

#include <string>

#include "comm/c10d/network.h"

namespace fullshard::comm::c10d {

/// What is known when a rank chooses the address under which the others shall reach it.
struct AddressRequest {
  std::string interface;       ///< CommOptions::interface
  std::string environment;     ///< GLOO_SOCKET_IFNAME
  std::string master;          ///< host of the job's store; empty when it has none
  bool several_hosts = false;  ///< whether ranks on other hosts must reach it
};

struct AddressChoice {
  std::string address;
  std::string warning;  ///< for the user; empty when there is nothing to say
};

/// The address of the interface that was named, by the options before the environment; else the own
/// address on the way to the master; else any that other hosts can reach. A loopback address only
/// when all ranks are on one host or its interface was named. Throws base::Error kConfiguration
/// when the named interface does not exist or no address is left.
AddressChoice choose_address(const AddressRequest& request, const Network& network);

}  // namespace fullshard::comm::c10d
