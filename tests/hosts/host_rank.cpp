// host_rank TASK HOSTS TIMEOUT HEARTBEAT [gloo]: one rank of the job that the environment
// describes, on one of HOSTS hosts, between which Gloo sends messages, with `gloo` also inside
// them; both times in seconds. Prints one line of JSON: what it found, or the error it got. Tasks:
//   collectives  every collective once, against closed forms
//   hybrid       training sharded inside each host and replicated over hosts
//   full         training sharded over all ranks
//   forever      training like `full` until something fails; prints "going" after the first step

#include <nlohmann/json.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "fullshard/base/error.h"
#include "support/training.h"

namespace {

using namespace fullshard;
using nlohmann::json;

const testing::TrainOptions kOneStep{.steps = 1};

std::int64_t sum_over_ranks(comm::World& world, std::int64_t value) {
  world.group().all_reduce({&value, 1, base::DType::kInt64}, comm::ReduceOp::kSum, {}).wait();
  return value;
}

json collectives(comm::World& world) {
  comm::Group& group = world.group();
  constexpr std::int64_t kPart = 100'003;
  std::vector<std::int64_t> mine(kPart, world.rank() + 1);
  std::vector<std::int64_t> all(static_cast<std::size_t>(kPart * world.size()));
  const comm::Buffer part{mine.data(), kPart, base::DType::kInt64};
  const comm::Buffer whole{all.data(), kPart * world.size(), base::DType::kInt64};
  const std::int64_t before = group.bytes_between_hosts();
  group.all_gather(part, whole, {}, {"gather", 1}).wait();
  const std::int64_t gathered = group.bytes_between_hosts();
  bool right = true;
  for (std::size_t i = 0; i < all.size(); ++i) {
    right = right && all[i] == static_cast<std::int64_t>(i) / kPart + 1;
  }
  group.reduce_scatter(whole, part, comm::ReduceOp::kSum, {}, {"reduce", 1}).wait();
  const std::int64_t reduced = group.bytes_between_hosts();
  for (const std::int64_t value : mine) right = right && value == world.size() * (world.rank() + 1);
  group.broadcast(part, world.size() - 1, {"broadcast", 1}).wait();
  for (const std::int64_t value : mine) right = right && value == world.size() * world.size();
  return {{"right", right},
          {"whole", whole.count * 8},
          {"gathered", sum_over_ranks(world, gathered - before)},
          {"reduced", sum_over_ranks(world, reduced - gathered)},
          {"local_rank", world.local_rank()},
          {"local_size", world.local_size()}};
}

json train(comm::World& world, int hosts, bool hybrid) {
  const auto task = testing::gpt_problem(17, 6, 3);
  const shard::StateDict expected = testing::train_reference(task, kOneStep);
  const auto model = task.build();
  const comm::Mesh mesh = hybrid ? world.mesh({.replicate = hosts}) : world.mesh();
  const auto sharded =
      shard::fully_shard(model, mesh,
                         {.sharding_strategy = hybrid ? shard::ShardingStrategy::HYBRID_SHARD
                                                      : shard::ShardingStrategy::FULL_SHARD});
  const std::int64_t replicated = mesh.replicate->bytes_between_hosts();
  const std::int64_t everywhere = mesh.all->bytes_between_hosts();
  testing::train_steps(*model, sharded, world, task, kOneStep);
  const json sent = {{"replicate", mesh.replicate->bytes_between_hosts() - replicated},
                     {"all", mesh.all->bytes_between_hosts() - everywhere},
                     {"shard_bytes", sharded.counters().parameter_shard_bytes},
                     {"shares_memory", mesh.shard->shares_memory()}};
  double largest = 0;
  for (const auto& [name, value] : sharded.full_state_dict()) {
    largest = std::max(largest, (value - expected.at(name)).abs().max().item<double>());
  }
  json result = sent;
  result["difference"] = largest;
  return result;
}

void train_forever(comm::World& world) {
  const auto task = testing::mlp_problem({7, 13, 13, 5});
  const auto model = task.build();
  const auto sharded = shard::fully_shard(model, world.mesh(), {});
  for (int step = 1;; ++step) {
    testing::train_steps(*model, sharded, world, task, kOneStep);
    if (step == 1) std::puts("going");
    std::fflush(stdout);
  }
}

json run(const std::string& task, int hosts, comm::World& world) {
  if (task == "collectives") return collectives(world);
  if (task == "forever") train_forever(world);
  return train(world, hosts, task == "hybrid");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5 && argc != 6) return 2;
  at::set_num_threads(1);
  try {
    comm::World world = comm::World::init(
        {.timeout = std::chrono::seconds(std::atoi(argv[3])),
         .heartbeat_timeout = std::chrono::seconds(std::atoi(argv[4])),
         .backend = argc == 6 ? comm::BackendChoice::kGloo : comm::BackendChoice::kAuto});
    const json result = run(argv[1], std::atoi(argv[2]), world);
    world.group().barrier({"leaving", -1});
    std::puts(result.dump().c_str());
  } catch (const base::Error& error) {
    std::puts(json({{"error", base::to_string(error.code())},
                    {"rank", error.rank()},
                    {"text", error.what()}})
                  .dump()
                  .c_str());
    return 3;
  }
}
