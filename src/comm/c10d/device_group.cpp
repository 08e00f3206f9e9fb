#include "comm/c10d/device_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "comm/device/errand.h"
#include "comm/shared/arguments.h"
#include "comm/shared/busy_scope.h"
#include "fullshard/base/error.h"

namespace fullshard::comm::c10d {
namespace {

using base::Error;
using base::ErrorCode;
using shared::OperationKind;
using shared::OperationRecord;
using shared::Parts;

// A round of a reduction costs a device a start of messages and one of sums, a host nearly nothing.
constexpr std::size_t kStagings = 32;

// How long to wait, when devices fail, for the host's side to learn who is the cause; and for a
// device, or its backend, to let go of what was interrupted or is over.
constexpr base::Duration kGrace = std::chrono::seconds(1);
constexpr base::Duration kLettingGo = std::chrono::seconds(5);

// How often a rank looks at the others while its devices are busy.
constexpr base::Duration kLook = std::chrono::milliseconds(5);

shared::Greeter* greeter_of(Group& host) {
  if (auto* greeter = dynamic_cast<shared::Greeter*>(&host)) return greeter;
  throw Error(ErrorCode::kMisuse,
              "a group of devices needs a group of shared memory or of messages to meet in");
}

std::string first_line(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text =
      c10_error != nullptr ? c10_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

// What all ranks do together besides operations.
OperationRecord joint_record(std::string_view what) {
  OperationRecord record(OperationKind::kBarrier, {std::string(what), -1});
  record.on_devices = true;
  return record;
}

[[noreturn]] void no_shared_memory(std::string_view purpose) {
  throw Error(ErrorCode::kMisuse, fmt::format("'{}' needs memory that all ranks see, and this is a "
                                              "group of devices; ask Group::shares_memory() first",
                                              purpose));
}

}  // namespace

DeviceGroup::DeviceGroup(std::shared_ptr<Group> host, rendezvous::Store store,
                         ConnectDevices connect, c10::Device device)
    : host_(std::move(host)),
      greeter_(greeter_of(*host_)),
      store_(std::move(store)),
      connect_(std::move(connect)),
      stream_(device),
      exceptions_at_start_(std::uncaught_exceptions()) {
  if (connect_) guard([&] { backend_ = connect_devices(); });
  const shared::Whereabouts where = greeter_->whereabouts();
  messages_ = std::make_unique<DeviceMessages>(backend_, rank(), HostMap(where.host_of), device);
  const bool in_layers = where.in_layers && messages_->hosts().hosts() > 1;
  const std::size_t chunk = kStagings * options().staging;
  collectives_ = in_layers ? make_hierarchical_device_collectives(*messages_, chunk)
                           : make_flat_device_collectives(*messages_, chunk);
  const auto time_out = [this] {
    throw Error(ErrorCode::kTimeout,
                fmt::format("{} timed out after {:.3g} s: all ranks arrived, but the devices did "
                            "not finish it",
                            describe(*current_), base::seconds(options().timeout)));
  };
  watchman_ = std::make_unique<device::Watchman>(device::Watchman::Duties{
      [this] { greeter_->look(*current_); }, time_out, [this] { interrupt(); }});
  lane_ = std::make_unique<Lane>();
}

c10::intrusive_ptr<::c10d::Backend> DeviceGroup::connect_devices() {
  const OperationRecord record = joint_record("connecting the devices");
  const auto deadline = base::Deadline::after(options().timeout);
  const auto connected = std::make_shared<c10::intrusive_ptr<::c10d::Backend>>();
  std::optional<device::Errand> errand;
  const auto ended = [&] {
    try {
      if (!errand) {
        errand.emplace([connected, call = connect_, store = store_, rank = rank(), size = size(),
                        device = stream_.device(), timeout = options().timeout] {
          *connected = call(store, rank, size, device, timeout);
        });
      }
      return errand->ended_within(kLook);
    } catch (const std::exception& error) {
      look_for_cause(record);
      const int self = greeter_->world_rank();
      throw Error(ErrorCode::kSystem, fmt::format("rank {}: {}", self, first_line(error)), self);
    }
  };
  while (!ended()) {
    greeter_->look(record);
    if (!deadline.passed()) continue;
    throw Error(ErrorCode::kTimeout,
                fmt::format("connecting the devices of {} ranks timed out after {:.3g} s: all "
                            "ranks arrived, but the devices do not find each other",
                            size(), base::seconds(options().timeout)));
  }
  return std::move(*connected);
}

DeviceGroup::~DeviceGroup() {
  if (std::uncaught_exceptions() > exceptions_at_start_) {
    host_->abort("it left because of an exception");
  }
  lane_.reset();
  watchman_.reset();
  collectives_.reset();
  messages_.reset();
  if (backend_ == nullptr) return;
  try {
    greeter_->look(joint_record("leaving"));
  } catch (const std::exception&) {
    interrupt();  // a farewell would wait for the others
  }
  try {
    const device::Errand errand([backend = std::move(backend_), failed = failed_.load()] {
      if (!failed) backend->shutdown();
    });
    errand.ended_within(kLettingGo);
  } catch (const std::exception&) {
    // Everything was done before; what is left of the connections ends with the process.
  }
}

// Frees the devices of all ranks that wait for this one: their messages fail. Where the backend
// does not even abort, the wait for the device ends by its own deadline; not so a call that begins
// an operation and does not return.
void DeviceGroup::interrupt() noexcept {
  if (failed_.exchange(true) || backend_ == nullptr) return;
  try {
    const device::Errand errand([backend = backend_] { backend->abort(); });
    errand.ended_within(kGrace);
  } catch (const std::exception&) {
    // Likewise.
  }
}

std::shared_ptr<Job> DeviceGroup::submit(std::function<void()> body) {
  ++started_;
  return lane_->submit(std::move(body));
}

Work DeviceGroup::begin(OperationRecord record, Algorithm algorithm, Agreement agree) {
  record.on_devices = true;
  const shared::BusyScope busy(busy_, [&] { return describe(record); });
  greeter_->look(record);
  auto job = submit([this, record, mark = stream_.mark(), algorithm = std::move(algorithm),
                     agree = std::move(agree)] { run(record, mark, algorithm, agree); });
  return work_of(std::move(job),
                 [host = host_] { host->abort("it left because of an exception"); });
}

// Runs on the lane.
void DeviceGroup::run(const OperationRecord& record, const DeviceStream::Mark& mark,
                      const Algorithm& algorithm, const Agreement& agree) {
  const auto deadline = base::Deadline::after(options().timeout);
  guard([&] {
    greeter_->greet(record);
    if (agree) agree();
    watch(record, deadline, [&] { use_device(record, mark, algorithm, deadline); });
  });
}

// A group that has failed once stays failed, on all ranks.
void DeviceGroup::guard(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    interrupt();
    host_->fail(error);
    throw;
  }
}

void DeviceGroup::use_device(const OperationRecord& record, const DeviceStream::Mark& mark,
                             const Algorithm& algorithm, base::Deadline deadline) {
  const DeviceStream::Scope scope(stream_, mark);
  algorithm(*collectives_);
  const auto patience = base::Deadline::after(deadline.remaining() + kLettingGo);
  if (!stream_.finish(patience)) explain(record, "the device does not let go of it");
}

// What the watchman finds is the cause of what the body then throws.
void DeviceGroup::watch(const OperationRecord& record, base::Deadline deadline,
                        const std::function<void()>& body) {
  current_ = &record;
  watchman_->begin(deadline);
  std::exception_ptr error;
  std::string what;
  try {
    body();
  } catch (const Error&) {
    error = std::current_exception();
  } catch (const std::exception& failure) {
    error = std::current_exception();
    what = first_line(failure);
  }
  watchman_->end();
  if (!what.empty()) explain(record, what);
  if (error) std::rethrow_exception(error);
}

// Throws it when there is one: devices often learn first that a rank is gone, but not which.
void DeviceGroup::look_for_cause(const OperationRecord& record) {
  const auto grace = base::Deadline::after(kGrace);
  do {
    greeter_->look(record);
    std::this_thread::sleep_for(kLook);
  } while (!grace.passed());
}

void DeviceGroup::explain(const OperationRecord& record, const std::string& what) {
  look_for_cause(record);
  throw Error(ErrorCode::kSystem,
              fmt::format("{} failed on {}: {}", describe(record), stream_.device().str(), what));
}

Work DeviceGroup::all_gather(ConstBuffer mine, Buffer all, std::span<const std::int64_t> counts,
                             const OpTag& tag) {
  const Parts parts = shared::cut_whole(all, mine, counts, rank(), size(), "all_gather", index());
  OperationRecord record(OperationKind::kAllGather, all, tag);
  record.set_counts(parts.counts);
  return begin(record, [=](DeviceCollectives& c) { c.all_gather(mine, all, parts); });
}

Work DeviceGroup::reduce_scatter(ConstBuffer all, Buffer mine, ReduceOp op,
                                 std::span<const std::int64_t> counts, const OpTag& tag) {
  const Parts parts =
      shared::cut_whole(all, mine, counts, rank(), size(), "reduce_scatter", index());
  shared::check_reduction(all.dtype, op, "reduce_scatter");
  OperationRecord record(OperationKind::kReduceScatter, all, tag);
  record.op = op;
  record.set_counts(parts.counts);
  return begin(record, [=](DeviceCollectives& c) { c.reduce_scatter(all, mine, parts, op); });
}

Work DeviceGroup::all_reduce(Buffer inout, ReduceOp op, const OpTag& tag) {
  shared::check_buffer(inout, "all_reduce", index());
  shared::check_reduction(inout.dtype, op, "all_reduce");
  OperationRecord record(OperationKind::kAllReduce, inout, tag);
  record.op = op;
  return begin(record, [=](DeviceCollectives& c) { c.all_reduce(inout, op); });
}

Work DeviceGroup::broadcast(Buffer inout, int root, const OpTag& tag) {
  shared::check_buffer(inout, "broadcast", index());
  shared::check_root(root, size(), "broadcast");
  OperationRecord record(OperationKind::kBroadcast, inout, tag);
  record.root = root;
  return begin(record, [=](DeviceCollectives& c) { c.broadcast(inout, root); });
}

Work DeviceGroup::all_to_all(ConstBuffer send, std::span<const std::int64_t> send_counts,
                             Buffer recv, std::span<const std::int64_t> recv_counts,
                             const OpTag& tag) {
  shared::check_buffer(send, "all_to_all", index());
  shared::check_buffer(recv, "all_to_all", index());
  shared::check_same_type(send, recv, "all_to_all");
  const Parts out = shared::cut(send_counts, size(), "all_to_all send");
  const Parts in = shared::cut(recv_counts, size(), "all_to_all receive");
  shared::check_total(send, out, "all_to_all send");
  shared::check_total(recv, in, "all_to_all receive");
  OperationRecord record(OperationKind::kAllToAll, tag);
  record.dtype = send.dtype;
  return begin(
      record, [=](DeviceCollectives& c) { c.all_to_all(send, out, recv, in); },
      [=, this] { check_counts(out.counts, in.counts, tag); });
}

// Shows every rank every count, so that all find the same mismatch.
void DeviceGroup::check_counts(const std::vector<std::int64_t>& send,
                               const std::vector<std::int64_t>& recv, const OpTag& tag) {
  const auto ranks = static_cast<std::int64_t>(size());
  std::vector<std::int64_t> row(send);
  row.insert(row.end(), recv.begin(), recv.end());
  std::vector<std::int64_t> table(static_cast<std::size_t>(2 * ranks * ranks));
  host_
      ->all_gather({row.data(), 2 * ranks, base::DType::kInt64},
                   {table.data(), 2 * ranks * ranks, base::DType::kInt64}, {}, tag)
      .wait();
  for (std::int64_t from = 0; from < ranks; ++from) {
    for (std::int64_t to = 0; to < ranks; ++to) {
      const std::int64_t sent = table[static_cast<std::size_t>(2 * ranks * from + to)];
      const std::int64_t expected = table[static_cast<std::size_t>(2 * ranks * to + ranks + from)];
      if (sent == expected) continue;
      throw Error(
          ErrorCode::kMismatch,
          fmt::format("ranks made different calls: in all_to_all on devices, rank {} of the "
                      "group sends {} elements to rank {}, which expects {}",
                      from, sent, to, expected));
    }
  }
}

void DeviceGroup::barrier(const OpTag& tag) {
  OperationRecord record(OperationKind::kBarrier, tag);
  record.on_devices = true;
  const shared::BusyScope busy(busy_, [&] { return describe(record); });
  submit([this, record] { guard([&] { greeter_->greet(record); }); })->wait();
}

std::unique_ptr<SharedSegment> DeviceGroup::allocate_shared(std::size_t, std::string_view purpose) {
  no_shared_memory(purpose);
}

std::unique_ptr<SignalBoard> DeviceGroup::allocate_signals(std::size_t, std::string_view purpose) {
  no_shared_memory(purpose);
}

std::shared_ptr<Group> DeviceGroup::subgroup(std::span<const int> ranks) {
  const shared::BusyScope busy(busy_, [] { return "subgroup"; });
  std::shared_ptr<Group> host;
  submit([&] { guard([&] { host = host_->subgroup(ranks); }); })->wait();
  if (host == nullptr) return nullptr;
  return std::make_shared<DeviceGroup>(
      std::move(host), store_.with_prefix(fmt::format("group{}", started_)),
      ranks.size() == 1 ? ConnectDevices() : connect_, stream_.device());
}

}  // namespace fullshard::comm::c10d
