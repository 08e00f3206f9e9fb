#include "fullshard/planner/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "fullshard/config/load.h"
#include "fullshard/config/resolve.h"
#include "planner/support.h"

namespace fullshard::planner {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

SettledJob settled_for(const char* model, int hosts = 1) {
  Input input;
  input.model = model;
  input.hosts = hosts;
  input.ranks_per_host = 2;
  return settle(input);
}

// The trainer takes what is proposed.
void expect_accepted(const Job& job, const Candidate& candidate) {
  const TrainSettings settings = train_settings(job, candidate);
  config::TrainConfig config;
  config::apply_flags(config, {settings.fields.begin(), settings.fields.end()});
  config::validate(config, job.machines.world());
  EXPECT_EQ(config.training.global_batch_size,
            job.batch * job.micro_batches * job.machines.world());
}

TEST(Report, TheTrainerTakesWhatIsProposed) {
  for (const int hosts : {1, 2}) {
    Job job = settled_for("bench-c", hosts).job;
    job.micro_batches = 2;
    for (const Candidate& candidate : candidates(6, hosts, {})) expect_accepted(job, candidate);
  }
}

TEST(Report, WhatTheTrainerCannotBeToldIsSaid) {
  const Job job = settled_for("bench-a").job;
  const Candidate candidate{.units = {UnitCut::Kind::kBlocks, 4}, .cuts = Cuts::kHeads};
  EXPECT_THAT(train_settings(job, candidate).missing,
              ::testing::IsSupersetOf({"a vocabulary of 50304: the trainer's has 256",
                                       "units of 4 blocks", "cutting between heads"}));
  EXPECT_TRUE(train_settings(settled_for("bench-c").job, {}).missing.empty());
}

TEST(Report, CppSaysAllOfACandidate) {
  Job job = settled_for("bench-a", 2).job;
  job.precision = Precision::kBFloat16;
  const std::string text = cpp_options(job, {.strategy = Strategy::kHybridDivided,
                                             .units = {UnitCut::Kind::kBlocks, 4},
                                             .cuts = Cuts::kHeads,
                                             .recompute = true});
  for (const char* part :
       {"ShardingStrategy::HYBRID_SHARD;", "with_groups(root_only(), groups)", "if (i % 4 == 0)",
        "{.pattern = \"*.attention.qkv.*\", .atom = Atom::kRow, .group = 384}",
        "shard_optimizer_over_replicas = true", "param_dtype = torch::kBFloat16",
        "world.mesh({.replicate = 2})", "x = checkpoint("}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(cpp_options(job, {.units = {UnitCut::Kind::kHalves, 0}, .prefetch = 1}),
              HasSubstr("groups.push_back({block + \".mlp_norm\", block + \".mlp\"});"));
}

TEST(Report, TextHasEveryPart) {
  const SettledJob settled = settled_for("bench-c", 2);
  const std::string text = to_text(settled, make_plan(settled.job, {}), 12);
  for (const char* part :
       {"10,844,160 parameters", "assumed   --threads-per-rank 1", "The best of each strategy",
        "HYBRID_SHARD", "Why the first:", "optimizer state", "a host sends", "Its granularity:",
        "Heads kept whole, 6 of 6 in a group", "torchrun --nnodes 2", "In a program:"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(Report, RowsLimitTheTable) {
  const SettledJob settled = settled_for("bench-c");
  const std::string text = to_text(settled, make_plan(settled.job, {}), 1);
  EXPECT_THAT(text, Not(HasSubstr("NO_SHARD")));
}

TEST(Report, JsonHasEverything) {
  const SettledJob settled = settled_for("bench-c", 2);
  const Plan plan = make_plan(settled.job, {});
  const auto json = nlohmann::json::parse(to_json(settled, plan));
  EXPECT_EQ(json["fits"], true);
  ASSERT_EQ(json["ways"].size(), plan.ways.size());
  const auto& first = json["ways"][0];
  EXPECT_EQ(first["memory"]["host"]["total"], plan.best().memory.host.total());
  EXPECT_DOUBLE_EQ(first["step"]["total"], plan.best().step.total());
  std::int64_t sum = 0;
  for (const auto& [name, bytes] : first["memory"]["host"].items()) {
    if (name != "total") sum += bytes.get<std::int64_t>();
  }
  EXPECT_EQ(sum, plan.best().memory.host.total());
  EXPECT_EQ(json["job"]["model"]["parameters"], 10'844'160);
  EXPECT_EQ(json["train"]["fields"]["model.dim"], "384");
}

}  // namespace
}  // namespace fullshard::planner
