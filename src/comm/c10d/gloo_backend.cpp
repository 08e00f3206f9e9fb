// The only source that sees Gloo's headers. They may be older than the Gloo inside libtorch, so
// nothing of Gloo is called from here: only c10d's own class is constructed.
#define USE_C10D_GLOO 1

#include "comm/c10d/gloo_backend.h"

#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "fullshard/base/error.h"
#include "rendezvous/c10d_store.h"

namespace fullshard::comm::c10d {
namespace {

using base::Error;
using base::ErrorCode;
using Gloo = ::c10d::ProcessGroupGloo;

std::string first_line(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text =
      c10_error != nullptr ? c10_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

std::unique_ptr<Link> connect(const std::shared_ptr<::gloo::transport::Device>& device,
                              const rendezvous::Store& store, int rank, int size,
                              base::Duration timeout) {
  const auto deadline = base::Deadline::after(timeout);
  const NoSigpipeScope no_sigpipe;
  // Gloo adds it to the time of day, so endless will not do, and no time at all is endless.
  const auto limited = std::clamp<base::Duration>(timeout, std::chrono::milliseconds(1),
                                                  std::chrono::hours(24 * 365));
  auto options = Gloo::Options::create(std::chrono::ceil<std::chrono::milliseconds>(limited));
  options->devices.push_back(device);
  options->threads = 1;  // for collectives of its own, which are not used
  try {
    return std::make_unique<Link>(c10::make_intrusive<Gloo>(
        rendezvous::StoreAccess::c10d_store(store), rank, size, std::move(options)));
  } catch (const std::exception& error) {
    const std::string reason = first_line(error);
    if (deadline.passed()) {
      throw Error(ErrorCode::kTimeout,
                  fmt::format("connecting {} ranks timed out after {:.3g} s: {}", size,
                              base::seconds(timeout), reason));
    }
    throw Error(ErrorCode::kPeerLost, fmt::format("cannot connect {} ranks: {}", size, reason));
  }
}

}  // namespace

ConnectRanks gloo_over_tcp(const std::string& address) {
  std::shared_ptr<::gloo::transport::Device> device;
  const NoSigpipeScope no_sigpipe;
  try {
    device = Gloo::createDeviceForHostname(address);
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kConfiguration, fmt::format("Gloo cannot listen at the address {}: {}",
                                                       address, first_line(error)));
  }
  return [device](const rendezvous::Store& store, int rank, int size, base::Duration timeout) {
    return connect(device, store, rank, size, timeout);
  };
}

}  // namespace fullshard::comm::c10d
