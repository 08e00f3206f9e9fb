#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "comm/c10d/device_collectives.h"
#include "comm/c10d/device_messages.h"
#include "comm/c10d/device_stream.h"
#include "comm/c10d/lane.h"
#include "comm/device/watchman.h"
#include "comm/host_map.h"
#include "comm/shared/greeter.h"
#include "fullshard/comm/group.h"
#include "fullshard/rendezvous/store.h"

namespace fullshard::comm::c10d {

/// Connects the devices of `size` ranks that meet under the keys of `store`, this rank's `device`
/// among them. Collective. `timeout` is that of the group. Called on a thread of its own, on which
/// it may be left behind.
using ConnectDevices = std::function<c10::intrusive_ptr<::c10d::Backend>(
    const rendezvous::Store& store, int rank, int size, c10::Device device,
    base::Duration timeout)>;

/// Group whose buffers lie on a device, one for each rank. A backend of c10d moves them; all that
/// is not data goes over a group of the host: each operation begins with a meeting there, which
/// finds differences and absentees, and while the devices work a watchman looks there whether
/// everybody lives. So deadlines, deaths and mismatches are those of that group, with its words.
///
/// Operations run one after the other on a thread of the group and a stream of the device. Each
/// begins after what the caller had given its current stream, and Work::wait returns when the
/// device has done it. A Work that is dropped waits by itself. Nobody waits longer than until
/// the deadline for a backend to connect, nor longer than a few seconds for it to abort or to
/// leave; a call that begins an operation has to return, at the latest when the backend is aborted.
class DeviceGroup final : public Group {
 public:
  /// Collective. `host` is of the same ranks and used by nobody else; it knows who is on which
  /// host. `connect` may be empty for a group of one rank. Throws base::Error kMisuse when `host`
  /// cannot greet; kTimeout, and the failures of `host`, while the devices do not connect; and
  /// kSystem with what `connect` threw, on all ranks, with the rank on which it did.
  DeviceGroup(std::shared_ptr<Group> host, rendezvous::Store store, ConnectDevices connect,
              c10::Device device);

  /// Waits for the operations that were started. During the unwinding of an exception the others
  /// are told of an error first.
  ~DeviceGroup() override;

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  const CommOptions& options() const override { return host_->options(); }
  bool shares_memory() const override { return false; }

  Work all_gather(ConstBuffer mine, Buffer all, std::span<const std::int64_t> counts,
                  const OpTag& tag) override;
  Work reduce_scatter(ConstBuffer all, Buffer mine, ReduceOp op,
                      std::span<const std::int64_t> counts, const OpTag& tag) override;
  Work all_reduce(Buffer inout, ReduceOp op, const OpTag& tag) override;
  Work broadcast(Buffer inout, int root, const OpTag& tag) override;
  Work all_to_all(ConstBuffer send, std::span<const std::int64_t> send_counts, Buffer recv,
                  std::span<const std::int64_t> recv_counts, const OpTag& tag) override;
  void barrier(const OpTag& tag) override;

  /// Throw kMisuse: devices share no memory here.
  std::unique_ptr<SharedSegment> allocate_shared(std::size_t bytes,
                                                 std::string_view purpose) override;
  std::unique_ptr<SignalBoard> allocate_signals(std::size_t counters,
                                                std::string_view purpose) override;

  std::shared_ptr<Group> subgroup(std::span<const int> ranks) override;
  void abort(std::string_view reason) noexcept override { host_->abort(reason); }
  void fail(const base::Error& failure) noexcept override { host_->fail(failure); }
  std::int64_t bytes_between_hosts() const override { return messages_->bytes_between_hosts(); }

 private:
  using Algorithm = std::function<void(DeviceCollectives&)>;
  using Agreement = std::function<void()>;  // further arguments that the ranks compare on the host

  int index() const { return stream_.device().is_cpu() ? 0 : stream_.device().index(); }
  c10::intrusive_ptr<::c10d::Backend> connect_devices();
  std::shared_ptr<Job> submit(std::function<void()> body);
  Work begin(shared::OperationRecord record, Algorithm algorithm, Agreement agree = nullptr);
  void run(const shared::OperationRecord& record, const DeviceStream::Mark& mark,
           const Algorithm& algorithm, const Agreement& agree);
  void use_device(const shared::OperationRecord& record, const DeviceStream::Mark& mark,
                  const Algorithm& algorithm, base::Deadline deadline);
  void guard(const std::function<void()>& body);
  void watch(const shared::OperationRecord& record, base::Deadline deadline,
             const std::function<void()>& body);
  void look_for_cause(const shared::OperationRecord& record);
  [[noreturn]] void explain(const shared::OperationRecord& record, const std::string& what);
  void check_counts(const std::vector<std::int64_t>& send, const std::vector<std::int64_t>& recv,
                    const OpTag& tag);
  void interrupt() noexcept;

  std::shared_ptr<Group> host_;
  shared::Greeter* greeter_;  // the same object
  rendezvous::Store store_;
  ConnectDevices connect_;
  DeviceStream stream_;
  int exceptions_at_start_;
  std::atomic<bool> busy_ = false;
  std::atomic<bool> failed_ = false;
  std::uint64_t started_ = 0;  // operations; written by whoever starts one

  c10::intrusive_ptr<::c10d::Backend> backend_;
  std::unique_ptr<DeviceMessages> messages_;
  std::unique_ptr<DeviceCollectives> collectives_;
  const shared::OperationRecord* current_ = nullptr;  // while the watchman is on duty
  std::unique_ptr<device::Watchman> watchman_;
  std::unique_ptr<Lane> lane_;  // the last member: ends first
};

}  // namespace fullshard::comm::c10d
