#include "trainer/rank_notes.h"

#include <algorithm>
#include <array>
#include <vector>

namespace fullshard::trainer {
namespace {

// Doubles hold every integer up to 2^53, so one buffer of one type carries a whole note.
using Row = std::array<double, 5>;

Row pack(const RankNote& note) {
  return {note.loss_sum, static_cast<double>(note.targets), static_cast<double>(note.stop_signal),
          static_cast<double>(note.peak_rss_bytes), static_cast<double>(note.peak_unsharded_bytes)};
}

void merge(RankNote& all, const Row& row) {
  all.loss_sum += row[0];
  all.targets += static_cast<std::int64_t>(row[1]);
  all.stop_signal = std::max(all.stop_signal, static_cast<int>(row[2]));
  all.peak_rss_bytes = std::max(all.peak_rss_bytes, static_cast<std::int64_t>(row[3]));
  all.peak_unsharded_bytes = std::max(all.peak_unsharded_bytes, static_cast<std::int64_t>(row[4]));
}

}  // namespace

RankNote exchange(comm::Group& group, const RankNote& mine, std::int64_t step) {
  const Row row = pack(mine);
  std::vector<Row> rows(static_cast<std::size_t>(group.size()));
  const auto width = static_cast<std::int64_t>(row.size());
  group
      .all_gather({row.data(), width, base::DType::kFloat64},
                  {rows.data(), width * group.size(), base::DType::kFloat64}, {},
                  {"loss of the step", step})
      .wait();
  RankNote all;
  for (const Row& other : rows) merge(all, other);
  return all;
}

std::int64_t sum_over_ranks(comm::Group& group, std::int64_t count, std::int64_t step) {
  group
      .all_reduce({&count, 1, base::DType::kInt64}, comm::ReduceOp::kSum,
                  {"targets of the step", step})
      .wait();
  return count;
}

int agree_on_stop(comm::Group& group, int signal) {
  std::int32_t largest = signal;
  group.all_reduce({&largest, 1, base::DType::kInt32}, comm::ReduceOp::kMax, {"stop", -1}).wait();
  return largest;
}

}  // namespace fullshard::trainer
