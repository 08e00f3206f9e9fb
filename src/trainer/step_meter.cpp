#include "trainer/step_meter.h"

#include <utility>

namespace fullshard::trainer {

StepMeter::StepMeter(const shard::ShardedModule& sharded, StepReport& report)
    : sharded_(sharded), report_(report) {
  sharded_.reset_peak();
  first_ = sharded_.counters();
  last_ = first_;
  phase_begin_ = base::Clock::now();
}

void StepMeter::end_phase(double& seconds) {
  shard::Counters counters = sharded_.counters();
  const double exposed = counters.exposed_comm_seconds - last_.exposed_comm_seconds;
  last_ = std::move(counters);
  const auto now = base::Clock::now();
  seconds += base::seconds(now - std::exchange(phase_begin_, now)) - exposed;
  report_.exposed_comm_seconds += exposed;
}

void StepMeter::finish() {
  report_.step_seconds = report_.data_seconds + report_.compute_seconds +
                         report_.exposed_comm_seconds + report_.optimizer_seconds;
  for (std::size_t u = 0; u < last_.units.size(); ++u) {
    report_.exposed_by_unit[last_.units[u].name] +=
        last_.units[u].exposed_seconds - first_.units[u].exposed_seconds;
  }
  report_.all_gathers = last_.all_gathers - first_.all_gathers;
  report_.all_gather_bytes = last_.all_gather_bytes - first_.all_gather_bytes;
  report_.reduce_scatters = last_.reduce_scatters - first_.reduce_scatters;
  report_.reduce_scatter_bytes = last_.reduce_scatter_bytes - first_.reduce_scatter_bytes;
  report_.bytes_between_hosts = last_.bytes_between_hosts - first_.bytes_between_hosts;
  report_.live_unsharded_bytes = last_.live_unsharded_bytes;
  report_.gradient_bytes = last_.gradient_bytes;
  report_.peak_unreduced_gradient_bytes = last_.peak_unreduced_gradient_bytes;
  report_.staging_bytes = last_.staging_bytes;
}

}  // namespace fullshard::trainer
