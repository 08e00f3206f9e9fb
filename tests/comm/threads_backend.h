#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace fullshard::comm::testing {

/// Where the ranks of ThreadsBackend leave their messages, and the faults that a test asks for.
class Hub {
 public:
  using Bytes = std::vector<std::byte>;

  void put(int from, int to, Bytes bytes);

  /// The message `number` from one rank to another; waits for it. Throws after abort() of `to`.
  Bytes take(int from, int to, std::size_t number);

  /// From now on nothing arrives, as when a device hangs.
  void stall();

  /// From now on every wait fails, as when a network breaks.
  void break_down();

  void abort(int rank);
  bool aborted(int rank) const;

 private:
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::map<std::pair<int, int>, std::deque<Bytes>> messages_;
  std::map<int, bool> aborted_;
  bool stalled_ = false;
  bool broken_ = false;
};

/// Stands for NCCL: a backend of c10d between threads, whose messages only go in groups, and which
/// does what the group of devices uses of a backend and nothing else.
class ThreadsBackend : public ::c10d::Backend {
 public:
  ThreadsBackend(std::shared_ptr<Hub> hub, int rank, int size)
      : Backend(rank, size), hub_(std::move(hub)) {}

  const std::string getBackendName() const override { return "threads"; }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  c10::intrusive_ptr<::c10d::Work> endCoalescing() override;
  c10::intrusive_ptr<::c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override;
  c10::intrusive_ptr<::c10d::Work> recv(std::vector<at::Tensor>& tensors, int from,
                                        int tag) override;
  c10::intrusive_ptr<::c10d::Work> _allgather_base(
      at::Tensor& all, at::Tensor& mine, const ::c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<::c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                             const ::c10d::BroadcastOptions& options) override;
  void abort() override { hub_->abort(getRank()); }

 private:
  struct Expected {
    int from;
    std::size_t number;
    at::Tensor into;
  };
  class Receipt;

  void post(int to, const at::Tensor& tensor);
  Expected expect(int from, const at::Tensor& into);
  c10::intrusive_ptr<::c10d::Work> receipt(std::vector<Expected> expected);

  std::shared_ptr<Hub> hub_;
  std::map<int, std::size_t> received_;
  std::optional<std::vector<Expected>> group_;
};

}  // namespace fullshard::comm::testing
