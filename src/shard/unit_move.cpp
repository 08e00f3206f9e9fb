#include "shard/unit_move.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "fullshard/base/error.h"
#include "shard/gather_owned.h"

namespace fullshard::shard {
namespace {

// What a rank owns of a parameter, in a tensor of all that it owns of the unit.
at::Tensor part_of(const at::Tensor& own, const FlatUnit& unit, std::size_t parameter) {
  return own.narrow(0, unit.own_offset(parameter), unit.own_range(parameter).size());
}

constexpr std::uint8_t kNothing = 0;
constexpr std::uint8_t kFits = 1;
constexpr std::uint8_t kMisshapen = 2;

std::uint8_t finding_of(const at::Tensor& tensor, std::int64_t elements) {
  if (!tensor.defined()) return kNothing;
  return tensor.dim() == 1 && tensor.numel() == elements ? kFits : kMisshapen;
}

}  // namespace

std::vector<at::Tensor> move_elements(const comm::Mesh& mesh, const FlatUnit& from,
                                      const FlatUnit& to, std::span<const at::Tensor> parts,
                                      const comm::OpTag& tag) {
  std::vector<at::Tensor> moved(parts.size());
  const auto any = std::find_if(parts.begin(), parts.end(),
                                [](const at::Tensor& part) { return part.defined(); });
  if (any == parts.end()) return moved;
  const at::Tensor own = at::zeros({from.own.size()}, any->scalar_type());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].defined()) part_of(own, from, i).copy_(parts[i]);
  }
  const at::Tensor whole = gather_owned(mesh, from, own, tag);
  const at::Tensor owned = whole.narrow(0, to.own.begin, to.own.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].defined()) moved[i] = part_of(owned, to, i).clone();
  }
  return moved;
}

void require_same_on_all(comm::Group& all, std::span<const std::vector<at::Tensor>> tensors,
                         std::span<const state::ShardedTensor> shards, const std::string& what) {
  std::vector<std::uint8_t> fewest;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (const at::Tensor& tensor : tensors[i]) {
      fewest.push_back(finding_of(tensor, shards[i].tensor.numel()));
    }
  }
  std::vector<std::uint8_t> most = fewest;
  const auto join = [&](std::vector<std::uint8_t>& findings, comm::ReduceOp op) {
    const auto count = static_cast<std::int64_t>(findings.size());
    all.all_reduce({findings.data(), count, base::DType::kUInt8}, op, {what, -1}).wait();
  };
  join(fewest, comm::ReduceOp::kMin);
  join(most, comm::ReduceOp::kMax);
  for (std::size_t at = 0; at < most.size(); ++at) {
    const std::string& name = shards[at / tensors.front().size()].name;
    if (most[at] == kMisshapen) {
      throw base::Error(base::ErrorCode::kMisuse,
                        fmt::format("what {} has for parameter '{}' is not one number for each "
                                    "element of its shard",
                                    what, name));
    }
    if (fewest[at] == most[at]) continue;
    throw base::Error(base::ErrorCode::kMismatch,
                      fmt::format("{} has something for parameter '{}' on some ranks and nothing "
                                  "on others; all ranks must have stepped it alike",
                                  what, name));
  }
}

}  // namespace fullshard::shard
