#include "comm/mixed/mixed_group.h"

#include <fmt/format.h>

#include <utility>

#include "fullshard/base/error.h"

namespace fullshard::comm {
namespace mixed {
namespace {

using base::Error;
using base::ErrorCode;

}  // namespace

MixedGroup::MixedGroup(std::shared_ptr<Group> host, std::shared_ptr<Group> devices)
    : host_(std::move(host)), devices_(std::move(devices)) {
  if (host_->rank() == devices_->rank() && host_->size() == devices_->size()) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("a mixed group needs two groups of the same ranks, and this is rank {} of "
                  "{} in the host's, rank {} of {} in the devices'",
                  host_->rank(), host_->size(), devices_->rank(), devices_->size()));
}

Group& MixedGroup::side_of(ConstBuffer buffer) const {
  return buffer.device == kHostMemory ? *host_ : *devices_;
}

Group& MixedGroup::side_of(ConstBuffer first, ConstBuffer second,
                           std::string_view operation) const {
  if ((first.device == kHostMemory) == (second.device == kHostMemory)) return side_of(first);
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("{}: one buffer is in host memory and the other on device {}; copy one of "
                  "them first",
                  operation, first.device == kHostMemory ? second.device : first.device));
}

Work MixedGroup::all_gather(ConstBuffer mine, Buffer all, std::span<const std::int64_t> counts,
                            const OpTag& tag) {
  return side_of(mine, all, "all_gather").all_gather(mine, all, counts, tag);
}

Work MixedGroup::reduce_scatter(ConstBuffer all, Buffer mine, ReduceOp op,
                                std::span<const std::int64_t> counts, const OpTag& tag) {
  return side_of(all, mine, "reduce_scatter").reduce_scatter(all, mine, op, counts, tag);
}

Work MixedGroup::all_reduce(Buffer inout, ReduceOp op, const OpTag& tag) {
  return side_of(inout).all_reduce(inout, op, tag);
}

Work MixedGroup::broadcast(Buffer inout, int root, const OpTag& tag) {
  return side_of(inout).broadcast(inout, root, tag);
}

Work MixedGroup::all_to_all(ConstBuffer send, std::span<const std::int64_t> send_counts,
                            Buffer recv, std::span<const std::int64_t> recv_counts,
                            const OpTag& tag) {
  return side_of(send, recv, "all_to_all").all_to_all(send, send_counts, recv, recv_counts, tag);
}

std::unique_ptr<SharedSegment> MixedGroup::allocate_shared(std::size_t bytes,
                                                           std::string_view purpose) {
  return host_->allocate_shared(bytes, purpose);
}

std::unique_ptr<SignalBoard> MixedGroup::allocate_signals(std::size_t counters,
                                                          std::string_view purpose) {
  return host_->allocate_signals(counters, purpose);
}

std::shared_ptr<Group> MixedGroup::subgroup(std::span<const int> ranks) {
  auto host = host_->subgroup(ranks);
  auto devices = devices_->subgroup(ranks);
  if (host == nullptr) return nullptr;
  return std::make_shared<MixedGroup>(std::move(host), std::move(devices));
}

void MixedGroup::abort(std::string_view reason) noexcept {
  host_->abort(reason);
  devices_->abort(reason);
}

void MixedGroup::fail(const Error& failure) noexcept {
  host_->fail(failure);
  devices_->fail(failure);
}

}  // namespace mixed

std::shared_ptr<Group> make_mixed_group(std::shared_ptr<Group> host,
                                        std::shared_ptr<Group> devices) {
  return std::make_shared<mixed::MixedGroup>(std::move(host), std::move(devices));
}

}  // namespace fullshard::comm
