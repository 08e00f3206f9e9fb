#include "comm/threads_backend.h"

#include <cstring>
#include <stdexcept>

namespace fullshard::comm::testing {

void Hub::put(int from, int to, Bytes bytes) {
  const std::lock_guard lock(mutex_);
  messages_[{from, to}].push_back(std::move(bytes));
  changed_.notify_all();
}

Hub::Bytes Hub::take(int from, int to, std::size_t number) {
  std::unique_lock lock(mutex_);
  std::deque<Bytes>& queue = messages_[{from, to}];
  changed_.wait(lock,
                [&] { return aborted_[to] || broken_ || (!stalled_ && queue.size() > number); });
  if (aborted_[to]) throw std::runtime_error("the communicator was aborted");
  if (broken_) throw std::runtime_error("unhandled system error\nand a long explanation");
  return std::move(queue[number]);
}

void Hub::stall() {
  const std::lock_guard lock(mutex_);
  stalled_ = true;
}

void Hub::break_down() {
  const std::lock_guard lock(mutex_);
  broken_ = true;
  changed_.notify_all();
}

void Hub::abort(int rank) {
  const std::lock_guard lock(mutex_);
  aborted_[rank] = true;
  changed_.notify_all();
}

bool Hub::aborted(int rank) const {
  const std::lock_guard lock(mutex_);
  const auto found = aborted_.find(rank);
  return found != aborted_.end() && found->second;
}

// What was started together; waiting brings the messages in.
class ThreadsBackend::Receipt final : public ::c10d::Work {
 public:
  Receipt(std::shared_ptr<Hub> hub, int rank, std::vector<Expected> expected)
      : hub_(std::move(hub)), rank_(rank), expected_(std::move(expected)) {}

  bool wait(std::chrono::milliseconds) override {
    for (const Expected& message : expected_) {
      const Hub::Bytes bytes = hub_->take(message.from, rank_, message.number);
      TORCH_CHECK(bytes.size() == message.into.nbytes(), "a message of another size");
      std::memcpy(message.into.data_ptr(), bytes.data(), bytes.size());
    }
    expected_.clear();
    return true;
  }

 private:
  std::shared_ptr<Hub> hub_;
  int rank_;
  std::vector<Expected> expected_;
};

void ThreadsBackend::post(int to, const at::Tensor& tensor) {
  Hub::Bytes bytes(tensor.nbytes());
  std::memcpy(bytes.data(), tensor.data_ptr(), bytes.size());
  hub_->put(getRank(), to, std::move(bytes));
}

ThreadsBackend::Expected ThreadsBackend::expect(int from, const at::Tensor& into) {
  return {from, received_[from]++, into};
}

c10::intrusive_ptr<::c10d::Work> ThreadsBackend::receipt(std::vector<Expected> expected) {
  return c10::make_intrusive<Receipt>(hub_, getRank(), std::move(expected));
}

void ThreadsBackend::startCoalescing() {
  TORCH_CHECK(!group_, "groups of calls do not nest");
  group_.emplace();
}

c10::intrusive_ptr<::c10d::Work> ThreadsBackend::endCoalescing() {
  auto expected = std::move(group_).value();
  group_.reset();
  return receipt(std::move(expected));
}

c10::intrusive_ptr<::c10d::Work> ThreadsBackend::send(std::vector<at::Tensor>& tensors, int to,
                                                      int) {
  TORCH_CHECK(group_, "a message alone would wait for its other end");
  TORCH_CHECK(to != getRank() && tensors.at(0).nbytes() > 0, "a message that need not be sent");
  post(to, tensors.at(0));
  return nullptr;
}

c10::intrusive_ptr<::c10d::Work> ThreadsBackend::recv(std::vector<at::Tensor>& tensors, int from,
                                                      int) {
  TORCH_CHECK(group_, "a message alone would wait for its other end");
  group_->push_back(expect(from, tensors.at(0)));
  return nullptr;
}

c10::intrusive_ptr<::c10d::Work> ThreadsBackend::_allgather_base(at::Tensor& all, at::Tensor& mine,
                                                                 const ::c10d::AllgatherOptions&) {
  TORCH_CHECK(all.numel() == mine.numel() * getSize(), "parts that are not equal");
  std::vector<Expected> expected;
  for (int rank = 0; rank < getSize(); ++rank) {
    const at::Tensor part = all.narrow(0, rank * mine.numel(), mine.numel());
    if (rank != getRank()) {
      post(rank, mine);
      expected.push_back(expect(rank, part));
    } else if (part.data_ptr() != mine.data_ptr()) {
      part.copy_(mine);
    }
  }
  return receipt(std::move(expected));
}

c10::intrusive_ptr<::c10d::Work> ThreadsBackend::broadcast(
    std::vector<at::Tensor>& tensors, const ::c10d::BroadcastOptions& options) {
  const auto root = static_cast<int>(options.rootRank);
  if (getRank() != root) return receipt({expect(root, tensors.at(0))});
  for (int rank = 0; rank < getSize(); ++rank) {
    if (rank != root) post(rank, tensors.at(0));
  }
  return receipt({});
}

}  // namespace fullshard::comm::testing
