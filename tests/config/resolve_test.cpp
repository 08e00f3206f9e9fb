#include "fullshard/config/resolve.h"

#include <gmock/gmock.h>

#include "config/support.h"

namespace fullshard::config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Resolve, StartsOneRankACoreUpToTheMost) {
  EXPECT_EQ(resolve({}, 1).job.nproc_per_node, 1);
  EXPECT_EQ(resolve({}, 2).job.nproc_per_node, 2);
  EXPECT_EQ(resolve({}, 64).job.nproc_per_node, kMostDefaultRanks);
}

TEST(Resolve, ChoosesRanksAmongWhichTheBatchSplits) {
  TrainConfig config;
  config.training.global_batch_size = 32;
  EXPECT_EQ(resolve(config, 3).job.nproc_per_node, 2);
  config.training.global_batch_size = 7;
  EXPECT_EQ(resolve(config, 8).job.nproc_per_node, 7);
  config.training.gradient_accumulation_steps = 7;
  EXPECT_EQ(resolve(config, 8).job.nproc_per_node, 1);
}

TEST(Resolve, EveryMachineCanRunTheDefaults) {
  for (int cores = 1; cores <= 130; ++cores) {
    const TrainConfig config = resolve({}, cores);
    EXPECT_NO_THROW(validate(config, config.job.nproc_per_node)) << cores;
  }
}

TEST(Resolve, SharesTheCoresOut) {
  TrainConfig config;
  config.job.nproc_per_node = 2;
  EXPECT_EQ(resolve(config, 8).job.threads_per_rank, 4);
  EXPECT_EQ(resolve(config, 1).job.threads_per_rank, 1);
  config.job.nproc_per_node = 1;
  EXPECT_EQ(resolve(config, 8).job.threads_per_rank, 8);
}

TEST(Resolve, KeepsWhatWasSet) {
  TrainConfig config;
  config.job.nproc_per_node = 5;
  config.job.threads_per_rank = 3;
  config.comm.backend = Backend::kLocal;
  EXPECT_TRUE(same(resolve(config, 64), config));
}

TEST(Validate, HeadsMustDivideTheWidth) {
  TrainConfig config;
  config.model.dim = 130;
  config.model.n_heads = 4;
  EXPECT_EQ(complaint([&] { validate(config, 1); }),
            "model.dim (130) must be a multiple of model.n_heads (4); use 128 or 132");
  config.model.dim = 132;
  EXPECT_EQ(complaint([&] { validate(config, 1); }), "");
}

TEST(Validate, RanksAndMicroBatchesMustDivideTheBatch) {
  TrainConfig config;
  config.training.global_batch_size = 10;
  config.training.gradient_accumulation_steps = 2;
  EXPECT_EQ(complaint([&] { validate(config, 5); }), "");
  EXPECT_THAT(complaint([&] { validate(config, 3); }),
              AllOf(HasSubstr("training.global_batch_size (10)"), HasSubstr("3 ranks"),
                    HasSubstr("use 6 or 12")));
  EXPECT_THAT(complaint([&] { validate(config, 50); }), HasSubstr("use 100"));
}

TEST(Validate, SetsOfRanksMustFitTheRanks) {
  TrainConfig config;
  config.training.global_batch_size = 12;
  config.parallelism.data_parallel_replicate_degree = 2;
  config.parallelism.sharding_strategy = ShardingStrategy::kHybridShard;
  EXPECT_EQ(complaint([&] { validate(config, 4); }), "");
  EXPECT_THAT(complaint([&] { validate(config, 3); }),
              AllOf(HasSubstr("data_parallel_replicate_degree (2)"), HasSubstr("ranks (3)")));
  config.parallelism.reshard_after_forward = 3;
  EXPECT_THAT(complaint([&] { validate(config, 4); }),
              AllOf(HasSubstr("reshard_after_forward (3)"), HasSubstr("the 2 ranks")));
  config.parallelism = {.sharding_strategy = ShardingStrategy::kHybridShard};
  EXPECT_THAT(complaint([&] { validate(config, 4); }), HasSubstr("degree above 1"));
}

TEST(Validate, BlocksToComputeAgainMustExist) {
  TrainConfig config;
  config.activation_checkpoint.selective_ac_option = config.model.n_layers + 1;
  EXPECT_EQ(complaint([&] { validate(config, 1); }), "");
  config.activation_checkpoint.mode = ActivationCheckpoint::kSelective;
  EXPECT_THAT(complaint([&] { validate(config, 1); }),
              HasSubstr("selective_ac_option (4) is above model.n_layers (3)"));
}

TEST(Validate, AHeartbeatIsOffOrAtLeastASecond) {
  TrainConfig config;
  for (const double good : {0.0, 1.0, 30.0}) {
    config.comm.heartbeat_timeout_seconds = good;
    EXPECT_EQ(complaint([&] { validate(config, 1); }), "");
  }
  config.comm.heartbeat_timeout_seconds = 0.5;
  EXPECT_THAT(complaint([&] { validate(config, 1); }),
              HasSubstr("comm.heartbeat_timeout_seconds (0.5) must be 0 or at least 1"));
}

}  // namespace
}  // namespace fullshard::config
