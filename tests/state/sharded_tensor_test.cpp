#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "fullshard/base/error.h"
#include "fullshard/state/validate.h"

namespace fullshard::state {
namespace {

using testing::HasSubstr;

ShardedTensor good() { return {"a.weight", {3, 4}, 4, 10, torch::zeros({6}), false}; }

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

std::string error_after(const std::function<void(ShardedTensor&)>& change) {
  ShardedTensor tensor = good();
  change(tensor);
  return error_of([&] { validate(tensor); });
}

TEST(ShardedTensor, CountsElements) {
  EXPECT_EQ(global_numel(good()), 12);
  EXPECT_EQ(local_numel(good()), 6);
  EXPECT_EQ(global_numel({"scalar", {}, 0, 1, torch::zeros({1}), true}), 1);
  EXPECT_EQ(global_numel({"none", {4, 0}, 0, 0, torch::zeros({0}), false}), 0);
}

TEST(ShardedTensor, CountsAlongTheDimensionThatItIsCutAlong) {
  const at::Tensor whole = torch::arange(12).view({3, 4});
  ShardedTensor tensor = good();
  EXPECT_TRUE(part_of(tensor, whole).equal(torch::arange(4, 10)));
  tensor.dimension = 1;  // columns 0 4 8, 1 5 9, 2 6 10, 3 7 11
  EXPECT_TRUE(part_of(tensor, whole).equal(torch::tensor({5, 9, 2, 6, 10, 3}, torch::kLong)));
  EXPECT_NO_THROW(validate(tensor));
  EXPECT_EQ(in_storage_order(torch::zeros({}), 0).dim(), 1);
}

TEST(ShardedTensor, AcceptsPartsEmptyPartsAndScalars) {
  EXPECT_NO_THROW(validate(good()));
  EXPECT_NO_THROW(validate(ShardedTensor{"a", {3}, 3, 3, torch::zeros({0}), false}));
  EXPECT_NO_THROW(validate(ShardedTensor{"scale", {}, 0, 1, torch::zeros({1}), true}));
}

TEST(ShardedTensor, NamesWhatIsWrong) {
  EXPECT_THAT(error_after([](auto& t) { t.name.clear(); }), HasSubstr("no name"));
  EXPECT_THAT(error_after([](auto& t) { t.end = 13; }), HasSubstr("[4, 13)"));
  EXPECT_THAT(error_after([](auto& t) { t.dimension = 2; }), HasSubstr("dimension 2; it has 2"));
  EXPECT_THAT(error_after([](auto& t) { t.dimension = -1; }), HasSubstr("dimension -1"));
  EXPECT_THAT(error_after([](auto& t) { t.begin = -1; }), HasSubstr("\"a.weight\""));
  EXPECT_THAT(error_after([](auto& t) { t.global_shape[0] = -3; }), HasSubstr("-3 is negative"));
  EXPECT_THAT(error_after([](auto& t) { t.tensor = at::Tensor(); }), HasSubstr("undefined"));
  EXPECT_THAT(error_after([](auto& t) { t.tensor = torch::zeros({2, 3}); }), HasSubstr("[2, 3]"));
  EXPECT_THAT(error_after([](auto& t) { t.tensor = torch::zeros({5}); }), HasSubstr("6 elements"));
  EXPECT_THAT(error_after([](auto& t) { t.replicated = true; }), HasSubstr("all 12 elements"));
}

TEST(ShardedTensor, RejectsTwoOfOneName) {
  const std::vector<ShardedTensor> two = {good(), good()};
  EXPECT_THAT(error_of([&] { validate(two); }), HasSubstr("same name"));
}

}  // namespace
}  // namespace fullshard::state
