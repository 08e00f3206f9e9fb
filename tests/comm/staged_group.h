#pragma once

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>

#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "support/forwarding_group.h"

namespace fullshard::comm::testing {

/// Lets tests that know host memory only run over a group of devices: copies every buffer to the
/// device, has the operation done there, and copies back what it wrote.
class StagedGroup final : public fullshard::testing::ForwardingGroup {
 public:
  StagedGroup(std::shared_ptr<Group> devices, at::Device device, int index)
      : ForwardingGroup(std::move(devices)), device_(device), index_(index) {}

  Work all_gather(ConstBuffer mine, Buffer all, std::span<const std::int64_t> counts,
                  const OpTag& tag) override {
    auto copies = std::make_shared<Copies>();
    const Buffer whole = stage(*copies, all);
    const ConstBuffer part = inside(mine, all, whole) ? moved(mine, all, whole)
                                                      : ConstBuffer(stage_input(*copies, mine));
    return finish(copies, group().all_gather(part, whole, counts, tag));
  }

  Work reduce_scatter(ConstBuffer all, Buffer mine, ReduceOp op,
                      std::span<const std::int64_t> counts, const OpTag& tag) override {
    auto copies = std::make_shared<Copies>();
    const Buffer whole = stage_input(*copies, all);
    const Buffer part = stage(*copies, mine);
    return finish(copies, group().reduce_scatter(whole, part, op, counts, tag));
  }

  Work all_reduce(Buffer inout, ReduceOp op, const OpTag& tag) override {
    auto copies = std::make_shared<Copies>();
    const Buffer staged = stage(*copies, inout);
    return finish(copies, group().all_reduce(staged, op, tag));
  }

  Work broadcast(Buffer inout, int root, const OpTag& tag) override {
    auto copies = std::make_shared<Copies>();
    const Buffer staged = stage(*copies, inout);
    return finish(copies, group().broadcast(staged, root, tag));
  }

  Work all_to_all(ConstBuffer send, std::span<const std::int64_t> send_counts, Buffer recv,
                  std::span<const std::int64_t> recv_counts, const OpTag& tag) override {
    auto copies = std::make_shared<Copies>();
    const Buffer out = stage_input(*copies, send);
    const Buffer in = stage(*copies, recv);
    return finish(copies, group().all_to_all(out, send_counts, in, recv_counts, tag));
  }

  std::shared_ptr<Group> subgroup(std::span<const int> ranks) override {
    auto some = group().subgroup(ranks);
    if (some == nullptr) return nullptr;
    return std::make_shared<StagedGroup>(std::move(some), device_, index_);
  }

 private:
  // What an operation works on; the last to let go of it has waited and copied back.
  struct Copies {
    std::vector<std::pair<at::Tensor, at::Tensor>> back;  // device, host
    std::vector<at::Tensor> inputs;
    Work work;
    bool finished = false;

    void finish() {
      work.wait();
      if (std::exchange(finished, true)) return;
      for (auto& [from, to] : back) to.copy_(from);
    }
    ~Copies() {
      try {
        finish();
      } catch (const std::exception&) {
        // Whoever wanted to know has waited.
      }
    }
  };

  static std::int64_t bytes_of(ConstBuffer buffer) {
    return buffer.count * static_cast<std::int64_t>(base::size_of(buffer.dtype));
  }

  Buffer on_device(const at::Tensor& bytes, ConstBuffer like) const {
    return {like.count == 0 ? nullptr : bytes.data_ptr(), like.count, like.dtype, index_};
  }

  Buffer stage_input(Copies& copies, ConstBuffer buffer) const {
    if (buffer.data == nullptr || buffer.count <= 0) {
      return {const_cast<void*>(buffer.data), buffer.count, buffer.dtype, index_};
    }
    const at::Tensor host =
        at::from_blob(const_cast<void*>(buffer.data), {bytes_of(buffer)}, at::kByte);
    copies.inputs.push_back(host.to(device_, at::kByte, false, /*copy=*/true));
    return on_device(copies.inputs.back(), buffer);
  }

  Buffer stage(Copies& copies, Buffer buffer) const {
    const Buffer staged = stage_input(copies, buffer);
    if (buffer.data == nullptr || buffer.count <= 0) return staged;
    copies.back.emplace_back(copies.inputs.back(),
                             at::from_blob(buffer.data, {bytes_of(buffer)}, at::kByte));
    return staged;
  }

  // Whether a part lies inside the whole, and where it then lies in the staged one.
  static bool inside(ConstBuffer part, ConstBuffer whole, ConstBuffer /*staged*/) {
    const auto* at = static_cast<const std::byte*>(part.data);
    const auto* begin = static_cast<const std::byte*>(whole.data);
    return part.count > 0 && at >= begin && at + bytes_of(part) <= begin + bytes_of(whole);
  }
  ConstBuffer moved(ConstBuffer part, ConstBuffer whole, ConstBuffer staged) const {
    const auto offset =
        static_cast<const std::byte*>(part.data) - static_cast<const std::byte*>(whole.data);
    return {static_cast<const std::byte*>(staged.data) + offset, part.count, part.dtype, index_};
  }

  static Work finish(const std::shared_ptr<Copies>& copies, Work work) {
    copies->work = std::move(work);
    return Work([copies] { copies->finish(); }, [copies] { return copies->work.done(); });
  }

  at::Device device_;
  int index_;
};

}  // namespace fullshard::comm::testing
