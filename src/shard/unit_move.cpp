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
                         const std::vector<std::string>& names, const std::string& what) {
  std::vector<std::uint8_t> fewest;
  for (const std::vector<at::Tensor>& of_one : tensors) {
    for (const at::Tensor& tensor : of_one) fewest.push_back(tensor.defined() ? 1 : 0);
  }
  std::vector<std::uint8_t> most = fewest;
  const auto join = [&](std::vector<std::uint8_t>& flags, comm::ReduceOp op) {
    const auto count = static_cast<std::int64_t>(flags.size());
    all.all_reduce({flags.data(), count, base::DType::kUInt8}, op, {what, 0}).wait();
  };
  join(fewest, comm::ReduceOp::kMin);
  join(most, comm::ReduceOp::kMax);
  const auto [first, other] = std::mismatch(fewest.begin(), fewest.end(), most.begin());
  if (first == fewest.end()) return;
  const auto kinds = tensors.front().size();
  const auto index = static_cast<std::size_t>(first - fewest.begin()) / kinds;
  throw base::Error(base::ErrorCode::kMismatch,
                    fmt::format("{} has something for parameter '{}' on some ranks and nothing on "
                                "others; all ranks must have stepped it alike",
                                what, names[index]));
}

}  // namespace fullshard::shard
