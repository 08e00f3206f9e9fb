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
    // A rank that has run out of rows runs the model for the others' sake, and adds nothing.
    mine.loss_sum += model->loss_sum(batch.tokens, batch.targets).item<double>();
    mine.targets += batch.learnt();
  }
  const RankNote all = exchange(group, mine, -1);
  return {.loss = all.loss_sum / static_cast<double>(all.targets)};
}

}  // namespace fullshard::trainer
