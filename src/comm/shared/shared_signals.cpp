#include "comm/shared/shared_signals.h"

#include <fmt/format.h>

#include "comm/shared/operation.h"
#include "fullshard/base/check.h"

namespace fullshard::comm::shared {
namespace {

// Rows of different ranks share no cache line.
std::size_t stride_for(std::size_t counters) {
  const std::size_t bytes = counters * sizeof(std::uint64_t);
  return (bytes + 63) / 64 * 64;
}

}  // namespace

std::size_t SharedSignals::bytes_for(int ranks, std::size_t counters) {
  return static_cast<std::size_t>(ranks) * stride_for(counters);
}

SharedSignals::SharedSignals(std::shared_ptr<Session> session,
                             std::unique_ptr<SharedSegment> memory, std::size_t counters,
                             std::string_view purpose, std::unique_ptr<trace::BoardTrace> trace)
    : session_(std::move(session)),
      memory_(std::move(memory)),
      counters_(reinterpret_cast<std::atomic<std::uint64_t>*>(memory_->data()),
                stride_for(counters), session_->size()),
      count_(counters),
      purpose_(purpose),
      trace_(std::move(trace)) {}

void SharedSignals::check_index(std::size_t index) const { FULLSHARD_CHECK_LT(index, count_); }

void SharedSignals::post(std::size_t index, std::uint64_t value, std::string_view operation,
                         const OpTag& tag) {
  check_index(index);
  session_->note(SignalNote::Act::kPosted, operation, tag);
  session_->post(counters_, index, value);
  trace_->post(index, value, operation, tag);
}

std::uint64_t SharedSignals::value(int rank, std::size_t index) const {
  check_index(index);
  return counters_.at(rank, index).load(std::memory_order_acquire);
}

bool SharedSignals::reached(std::size_t index, std::uint64_t value) const {
  check_index(index);
  return counters_.reached(index, value);
}

void SharedSignals::wait(std::size_t index, std::uint64_t value, std::string_view operation,
                         const OpTag& tag) {
  if (reached(index, value)) return;
  session_->note(SignalNote::Act::kWaits, operation, tag);
  trace::Flight flight = trace_->wait(index, value, operation, tag);
  const auto in_words = [&] {
    return fmt::format("{}{} ({}: counter {} at {})", operation, describe_tag(tag.unit, tag.step),
                       purpose_, index, value);
  };
  // A reference fits into a std::function as it is; waiting allocates nothing.
  session_->wait(counters_, index, value,
                 {base::Deadline::after(session_->options().timeout),
                  [&in_words] { return in_words(); }, &flight});
  flight.finish();
}

}  // namespace fullshard::comm::shared
