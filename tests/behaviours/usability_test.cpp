#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fullshard/base/error.h"
#include "support/networks.h"
#include "support/training.h"

// O: messages.

namespace fullshard::shard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

template <typename Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

auto no_internal_names() {
  return AllOf(Not(HasSubstr("_fsdp")), Not(HasSubstr("flat_param")), Not(HasSubstr("module.")),
               Not(HasSubstr("PagedStorage")), Not(HasSubstr("DeferredInit")));
}

TEST(Behaviours, O1_ErrorsUseTheUsersNames) {
  const auto task = testing::gpt_problem(17, 6, 2);
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh());
    const StateDict original = sharded.full_state_dict();

    StateDict wrong = original;
    wrong.erase("blocks.0.norm.weight");
    wrong["blocks.9.norm.weight"] = at::zeros({6});
    wrong["head.weight"] = at::zeros({2, 3});
    EXPECT_THAT(
        message_of([&] { sharded.load_state_dict(wrong); }),
        AllOf(HasSubstr("missing: blocks.0.norm.weight"),
              HasSubstr("not in the model: blocks.9.norm.weight"),
              HasSubstr("head.weight: given [2, 3], the model has [17, 6]"), no_internal_names()));
    testing::expect_bitwise_equal(sharded.full_state_dict(), original);  // nothing was changed

    EXPECT_THAT(message_of([&] { fully_shard(model, world.mesh()); }),
                AllOf(HasSubstr("'table.weight' is sharded already"), no_internal_names()));

    const at::NoGradGuard no_grad;
    EXPECT_THAT(message_of([&] { model->named_parameters()["norm.bias"].zero_(); }),
                AllOf(HasSubstr("'norm.bias'"), no_internal_names()));
  });
}

// After it was gathered and evicted, as before: no crash and no stale values.
TEST(Behaviours, O1_RawMemoryOfAnEvictedParameterIsAnErrorWithItsName) {
  const auto task = testing::gpt_problem(17, 6, 2);
  const StateDict plain = testing::parameters_of(*task.build());
  testing::run_both_ways(2, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh());
    const auto expect_absent = [&] {
      for (const auto& item : model->named_parameters()) {
        const auto named = AllOf(HasSubstr("'" + item.key() + "'"), no_internal_names());
        EXPECT_THAT(message_of([&] { item.value().data_ptr<double>(); }), named);
        EXPECT_THAT(message_of([&] { item.value().mutable_data_ptr(); }), named);
      }
    };
    const auto batch = testing::rows_of_rank(task.batch(0), world.rank(), world.size());
    expect_absent();
    model->loss(batch.x, batch.y).backward();
    EXPECT_EQ(sharded.counters().live_unsharded_bytes, 0);
    expect_absent();
    sharded.zero_grad();
    {
      const at::NoGradGuard no_grad;
      model->loss(batch.x, batch.y);
    }
    // What was touched last stays; it can be read, the others cannot.
    const auto parameters = model->named_parameters();
    const at::Tensor head = plain.at("head.weight");
    EXPECT_EQ(parameters["head.weight"].const_data_ptr<double>()[7],
              head.const_data_ptr<double>()[7]);
    EXPECT_THAT(message_of([&] { parameters["blocks.1.up.bias"].const_data_ptr(); }),
                HasSubstr("'blocks.1.up.bias'"));
    sharded.release();
    expect_absent();
  });
}

}  // namespace
}  // namespace fullshard::shard
