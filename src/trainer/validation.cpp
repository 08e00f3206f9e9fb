#include "trainer/validation.h"

#include <ATen/core/grad_mode.h>

#include "trainer/rank_notes.h"

namespace fullshard::trainer {

ValidationOutcome validate(models::Gpt& model, const data::ValidationSet& set, comm::Group& group,
                           const std::function<int()>& stop_signal) {
  const at::NoGradGuard no_grad;
  RankNote mine;
  for (std::int64_t round = 0; round < set.rounds(); ++round) {
    const int signal = agree_on_stop(group, stop_signal ? stop_signal() : 0);
    if (signal != 0) return {.stop_signal = signal};
    const data::Batch batch = set.batch(round);
    const double loss = model->loss(batch.tokens, batch.targets).item<double>();
    const std::int64_t rows = batch.tokens.size(0);
    if (rows == 0) continue;  // ran for the others' sake; the mean of nothing is no number
    mine.loss_sum += loss * static_cast<double>(rows);
    mine.samples += rows;
  }
  const RankNote all = exchange(group, mine, -1);
  return {.loss = all.loss_sum / static_cast<double>(all.samples)};
}

}  // namespace fullshard::trainer
