#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fullshard/base/error.h"
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
  } catch (const base::Error& error) {
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

// A unit may return anything at all: there is no unsupported output to report.
TEST(Behaviours, O1_AnyOutputIsSupported) {
  struct Opaque {
    at::Tensor hidden;
    int anything = 0;
  };
  const auto task = testing::mlp_problem({4, 4, 4});
  comm::run_as_threads(2, [&](comm::World& world) {
    const auto model = task.build();
    const auto sharded = fully_shard(model, world.mesh());
    const auto batch = testing::rows_of_rank(task.batch(0), world.rank(), world.size());
    const auto call = [&]() -> Opaque { return {model->loss(batch.x, batch.y), 1}; };
    call().hidden.backward();
    EXPECT_GT(sharded.grad_norm(), 0);
  });
}

}  // namespace
}  // namespace fullshard::shard
