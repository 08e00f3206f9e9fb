#include "comm/c10d/c10d_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "comm/c10d/algorithms.h"
#include "comm/c10d/greeting.h"
#include "comm/local/local_world.h"
#include "comm/shared/arguments.h"
#include "comm/shared/busy_scope.h"
#include "comm/shared/report.h"
#include "fullshard/base/check.h"

namespace fullshard::comm::c10d {
namespace {

using base::Error;
using base::ErrorCode;
using shared::OperationKind;
using shared::OperationRecord;
using shared::Parts;

// Operations far apart may share a tag; Membership's connections are others.
int tag_of(std::uint64_t number) { return static_cast<int>(number % (1U << 30)); }

[[noreturn]] void no_shared_memory(std::string_view purpose) {
  throw Error(ErrorCode::kMisuse,
              fmt::format("'{}' needs memory that all ranks see, and the ranks of this group "
                          "communicate over a network; ask Group::shares_memory() first",
                          purpose));
}

}  // namespace

C10dGroup::C10dGroup(rendezvous::Store store, ConnectRanks connect, const Look& look, int rank,
                     std::shared_ptr<trace::GroupTrace> trace, Placement placement,
                     CommOptions options)
    : store_(std::move(store)),
      connect_(std::move(connect)),
      trace_(std::move(trace)),
      options_(std::move(options)),
      placement_(std::move(placement)),
      exceptions_at_start_(std::uncaught_exceptions()) {
  const int size = static_cast<int>(trace_->ranks().size());
  FULLSHARD_CHECK_EQ(placement_.host_of.size(), trace_->ranks().size());
  for (const int host : placement_.host_of) {
    elsewhere_.push_back(host != placement_.host_of[static_cast<std::size_t>(rank)]);
  }
  const Seat seat{rank, size};
  collectives_ = placement_.inside == nullptr
                     ? make_flat_collectives(seat, options_.staging)
                     : make_hierarchical_collectives(seat, HostMap(placement_.host_of),
                                                     placement_.inside, options_.staging);
  const auto deadline = base::Deadline::after(options_.timeout);
  data_ = connect_(store_.with_prefix("data"), rank, trace_->ranks(), deadline.remaining(), look);
  auto control =
      connect_(store_.with_prefix("control"), rank, trace_->ranks(), deadline.remaining(), look);
  membership_ = std::make_shared<Membership>(
      std::move(control), rank, trace_->ranks(), [this] { interrupt(); },
      [this] { return waited_for(); });
  membership_->start();  // from here on interrupt() may be called, which uses it
  alarm_ = std::make_unique<Alarm>([this] { ring(); });
  lane_ = std::make_unique<Lane>();
  barrier({"joining the group", -1});
}

C10dGroup::~C10dGroup() {
  if (std::uncaught_exceptions() > exceptions_at_start_) {
    abort("it left because of an exception");
  }
  lane_.reset();
  alarm_.reset();
  membership_->close();
}

void C10dGroup::interrupt() noexcept {
  {
    const std::lock_guard lock(current_mutex_);
    if (current_ != nullptr) current_->interrupt();
  }
  if (placement_.inside == nullptr) return;
  try {
    membership_->throw_if_failed("an operation");
  } catch (const Error& failure) {
    placement_.inside->fail(failure);
  }
}

int C10dGroup::waited_for() noexcept {
  const std::lock_guard lock(current_mutex_);
  return current_ == nullptr ? -1 : current_->waited_for();
}

void C10dGroup::ring() noexcept {
  const std::lock_guard lock(current_mutex_);
  timed_out_ = true;
  if (current_ != nullptr) current_->interrupt();
}

int C10dGroup::find_silent(base::Duration grace) noexcept {
  if (!membership_->failed()) membership_->call_roll(-1, grace);
  try {
    membership_->throw_if_failed("a roll call");
  } catch (const Error& failure) {
    return failure.rank();
  }
  const int silent = membership_->find_silent();
  return silent < 0 ? -1 : membership_->world_rank(silent);
}

int C10dGroup::member(int world_rank) const {
  const std::vector<int>& members = membership_->members();
  const auto place = std::find(members.begin(), members.end(), world_rank);
  return place == members.end() ? -1 : static_cast<int>(place - members.begin());
}

std::string C10dGroup::named(const OperationRecord& record) const {
  return fmt::format("rank {}: {}", membership_->world_rank(rank()), describe(record));
}

std::shared_ptr<Job> C10dGroup::start(const OperationRecord& record, Algorithm algorithm) {
  try {
    membership_->throw_if_failed(describe(record));
  } catch (const Error& error) {
    rethrow(error);
  }
  const std::uint64_t number = ++started_;
  return lane_->submit(
      [this, number, record, algorithm = std::move(algorithm)] { run(number, record, algorithm); });
}

Work C10dGroup::begin(const OperationRecord& record, Algorithm algorithm) {
  const shared::BusyScope busy(busy_, [&] { return named(record); });
  return work_of(start(record, std::move(algorithm)), [membership = membership_] {
    membership->abort("it left because of an exception");
  });
}

void C10dGroup::abort(std::string_view reason) noexcept {
  membership_->abort(reason);
  trace_->write_failure(reason);
}

// After writing the flight record, if that is wanted.
void C10dGroup::rethrow(const Error& error) const {
  throw Error(error.code(), error.what() + trace_->write_failure(error.what()), error.rank());
}

// Runs on the lane.
void C10dGroup::run(std::uint64_t number, const OperationRecord& record,
                    const Algorithm& algorithm) {
  trace::Flight flight = trace_->begin(number, record);
  try {
    carry_out(number, record, algorithm);
  } catch (const Error& error) {
    flight.fail();
    membership_->announce_failure();
    rethrow(error);
  }
  flight.finish();
}

void C10dGroup::carry_out(std::uint64_t number, const OperationRecord& record,
                          const Algorithm& algorithm) {
  membership_->enter(number, record);
  const OpTag tag{std::string(record.unit.view()), record.step};
  Greeting greeting(*membership_, number, record);
  Transfer transfer(*data_, tag_of(number));
  {
    const std::lock_guard lock(current_mutex_);
    current_ = &transfer;
    timed_out_ = false;
  }
  alarm_->set(base::Deadline::after(options_.timeout));
  // A failure between entering and here has interrupted nothing.
  if (membership_->failed()) transfer.interrupt();
  std::optional<Interrupted> interrupted;
  int lost = -1;
  std::exception_ptr error;
  try {
    greeting.exchange(transfer);
    transfer.count_into(bytes_between_hosts_, elsewhere_);
    algorithm({transfer, tag});
  } catch (const Interrupted& interruption) {
    interrupted = interruption;
  } catch (const ConnectionLost& loss) {
    lost = loss.peer;
  } catch (const Error& failure) {  // of the host's ranks among themselves, or of the greeting
    if (failure.code() == ErrorCode::kTimeout) {
      interrupted = Interrupted{member(failure.rank())};
      ring();
    } else {
      membership_->fail(failure.code(), failure.rank(), failure.what());
      error = std::current_exception();
    }
  } catch (...) {
    error = std::current_exception();
  }
  alarm_->clear();
  bool timed_out = false;
  {
    const std::lock_guard lock(current_mutex_);
    current_ = nullptr;
    timed_out = timed_out_;
  }
  transfer.withdraw();
  if (error) {
    membership_->abort(fmt::format("{} went wrong on it", describe(record)));
    std::rethrow_exception(error);
  }
  if (lost >= 0) membership_->explain_loss(lost);
  if (interrupted && timed_out && !membership_->failed()) {
    greeting.time_out(options_.timeout, interrupted->peer);
  }
  if (interrupted || lost >= 0) membership_->throw_if_failed(describe(record));
  membership_->leave_operation();
}

Work C10dGroup::all_gather(ConstBuffer mine, Buffer all, std::span<const std::int64_t> counts,
                           const OpTag& tag) {
  const Parts parts = shared::cut_whole(all, mine, counts, rank(), size(), "all_gather");
  OperationRecord record(OperationKind::kAllGather, all, tag);
  record.set_counts(parts.counts);
  return begin(record, [this, mine, all, parts](Call call) {
    collectives_->all_gather(call, mine.data, all.data, parts, all.dtype);
  });
}

Work C10dGroup::reduce_scatter(ConstBuffer all, Buffer mine, ReduceOp op,
                               std::span<const std::int64_t> counts, const OpTag& tag) {
  const Parts parts = shared::cut_whole(all, mine, counts, rank(), size(), "reduce_scatter");
  shared::check_reduction(all.dtype, op, "reduce_scatter");
  OperationRecord record(OperationKind::kReduceScatter, all, tag);
  record.op = op;
  record.set_counts(parts.counts);
  return begin(record, [this, all, mine, op, parts](Call call) {
    collectives_->reduce_scatter(call, all.data, mine.data, parts, all.dtype, op);
  });
}

Work C10dGroup::all_reduce(Buffer inout, ReduceOp op, const OpTag& tag) {
  shared::check_buffer(inout, "all_reduce");
  shared::check_reduction(inout.dtype, op, "all_reduce");
  OperationRecord record(OperationKind::kAllReduce, inout, tag);
  record.op = op;
  return begin(record, [this, inout, op](Call call) { collectives_->all_reduce(call, inout, op); });
}

Work C10dGroup::broadcast(Buffer inout, int root, const OpTag& tag) {
  shared::check_buffer(inout, "broadcast");
  shared::check_root(root, size(), "broadcast");
  OperationRecord record(OperationKind::kBroadcast, inout, tag);
  record.root = root;
  return begin(record,
               [this, inout, root](Call call) { collectives_->broadcast(call, inout, root); });
}

Work C10dGroup::all_to_all(ConstBuffer send, std::span<const std::int64_t> send_counts, Buffer recv,
                           std::span<const std::int64_t> recv_counts, const OpTag& tag) {
  shared::check_buffer(send, "all_to_all");
  shared::check_buffer(recv, "all_to_all");
  shared::check_same_type(send, recv, "all_to_all");
  const Parts out = shared::cut(send_counts, size(), "all_to_all send");
  const Parts in = shared::cut(recv_counts, size(), "all_to_all receive");
  shared::check_total(send, out, "all_to_all send");
  shared::check_total(recv, in, "all_to_all receive");
  OperationRecord record(OperationKind::kAllToAll, tag);
  record.dtype = send.dtype;
  return begin(record, [this, send, recv, out, in](Call call) {
    exchange_counts(call.transfer, out.counts, in.counts);
    collectives_->all_to_all(call, send.data, out, recv.data, in, send.dtype);
  });
}

// Shows every rank every count, so that all find the same mismatch.
void C10dGroup::exchange_counts(Transfer& transfer, const std::vector<std::int64_t>& send,
                                const std::vector<std::int64_t>& recv) {
  const auto ranks = static_cast<std::size_t>(size());
  std::vector<std::int64_t> table(2 * ranks * ranks);  // a row a rank: what it sends and expects
  const auto row = [&](std::size_t of) { return table.data() + of * 2 * ranks; };
  const std::size_t bytes = 2 * ranks * sizeof(std::int64_t);
  const auto own = static_cast<std::size_t>(rank());
  std::copy(send.begin(), send.end(), row(own));
  std::copy(recv.begin(), recv.end(), row(own) + ranks);
  for (std::size_t other = 0; other < ranks; ++other) {
    if (other == own) continue;
    transfer.recv(static_cast<int>(other), row(other), bytes);
    transfer.send(static_cast<int>(other), row(own), bytes);
  }
  transfer.finish();
  for (std::size_t from = 0; from < ranks; ++from) {
    for (std::size_t to = 0; to < ranks; ++to) {
      const std::int64_t sent = row(from)[to];
      const std::int64_t expected = row(to)[ranks + from];
      if (sent == expected) continue;
      const std::string text = fmt::format(
          "ranks made different calls: in all_to_all, rank {} sends {} elements to "
          "rank {}, which expects {}",
          membership_->world_rank(static_cast<int>(from)), sent,
          membership_->world_rank(static_cast<int>(to)), expected);
      membership_->fail(ErrorCode::kMismatch, -1, text);
      throw Error(ErrorCode::kMismatch, text);
    }
  }
}

void C10dGroup::barrier(const OpTag& tag) { greet(OperationRecord(OperationKind::kBarrier, tag)); }

void C10dGroup::greet(const OperationRecord& record) {
  const shared::BusyScope busy(busy_, [&] { return named(record); });
  start(record, [](Call) {})->wait();
}

void C10dGroup::look(const OperationRecord& record) {
  membership_->throw_if_failed(describe(record));
}

std::unique_ptr<SharedSegment> C10dGroup::allocate_shared(std::size_t, std::string_view purpose) {
  no_shared_memory(purpose);
}

std::unique_ptr<SignalBoard> C10dGroup::allocate_signals(std::size_t, std::string_view purpose) {
  no_shared_memory(purpose);
}

std::shared_ptr<Group> C10dGroup::subgroup(std::span<const int> ranks) {
  shared::check_members(ranks, size());
  OperationRecord record(OperationKind::kSubgroup, {});
  const std::vector<std::int64_t> wide(ranks.begin(), ranks.end());
  record.set_counts(wide);
  const shared::BusyScope busy(busy_, [&] { return named(record); });
  start(record, [](Call) {})->wait();
  try {
    return make_subgroup(ranks, [membership = membership_, what = describe(record)] {
      membership->throw_if_failed(what);
    });
  } catch (const Error& error) {
    give_up_subgroup(error);
  }
}

// Ranks that have got further would wait for this one, so they are told. When all that they see is
// that its connections in the new group break, they wait for the reason, which comes in this one.
void C10dGroup::give_up_subgroup(const Error& error) {
  if (error.code() == ErrorCode::kPeerLost) membership_->await_failure();
  const int cause = error.rank() < 0 ? membership_->world_rank(rank()) : error.rank();
  membership_->fail(error.code(), cause, error.what());
  rethrow(membership_->failure().value_or(error));
}

// After all ranks have met. `look` throws once this group has failed, for instance because one of
// them has died since.
std::shared_ptr<Group> C10dGroup::make_subgroup(std::span<const int> ranks, const Look& look) {
  std::shared_ptr<Group> inside = inside_of(ranks);
  const auto own = std::find(ranks.begin(), ranks.end(), rank());
  if (own == ranks.end()) return nullptr;
  std::vector<int> members;
  std::vector<int> host_of;
  for (const int member : ranks) {
    members.push_back(membership_->world_rank(member));
    host_of.push_back(placement_.host_of[static_cast<std::size_t>(member)]);
  }
  auto trace = trace_->subgroup(started_, std::move(members));
  if (ranks.size() == 1) return local::make_single_group(std::move(trace), options_);
  const HostMap hosts(host_of);
  if (inside != nullptr && hosts.hosts() == 1) return inside;
  if (!hosts.any_together()) inside = nullptr;
  return std::make_shared<C10dGroup>(store_.with_prefix(fmt::format("group{}", started_)), connect_,
                                     look, static_cast<int>(own - ranks.begin()), std::move(trace),
                                     Placement{std::move(host_of), std::move(inside)}, options_);
}

// Of the given ranks those on this host, as a group that shares memory; null when there are none,
// or this rank is not among them, or hosts are not looked at.
std::shared_ptr<Group> C10dGroup::inside_of(std::span<const int> ranks) const {
  if (placement_.inside == nullptr) return nullptr;
  const HostMap hosts(placement_.host_of);
  const int here = hosts.host_of(rank());
  std::vector<int> locals;
  for (const int member : ranks) {
    if (hosts.host_of(member) == here) locals.push_back(hosts.local(member));
  }
  return locals.empty() ? nullptr : placement_.inside->subgroup(locals);
}

}  // namespace fullshard::comm::c10d
