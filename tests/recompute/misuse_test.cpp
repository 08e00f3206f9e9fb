#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>

#include "fullshard/base/error.h"
#include "fullshard/recompute/checkpoint.h"
#include "recompute/both_ways.h"

// Regions that break the contract get an error that says what they did.

namespace fullshard::recompute {
namespace {

using ::testing::HasSubstr;
using testing::random;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::ErrorCode::kMisuse);
    return error.what();
  }
  return "no error";
}

class Misuse : public ::testing::Test {
 protected:
  // What backward says of a region that does `second` the second time.
  std::string error_when(const std::function<Tensors(const at::Tensor&)>& first,
                         const std::function<Tensors(const at::Tensor&)>& second) {
    auto again = std::make_shared<bool>(false);
    const Tensors out = checkpoint(
        [=](const at::Tensor& h) { return std::exchange(*again, true) ? second(h) : first(h); }, x);
    return error_of([&] { out[0].sum().backward(); });
  }

  at::Tensor x = random({3, 4});
  at::Tensor w = random({4, 4});
  at::Tensor other = random({4, 4});
};

TEST_F(Misuse, AParameterThatForwardDidNotUse) {
  const auto with = [](const at::Tensor& weight) {
    return [=](const at::Tensor& h) { return Tensors{at::mm(h, weight)}; };
  };
  EXPECT_THAT(
      error_when(with(w), with(other)),
      HasSubstr("did something else when it ran again in backward: it uses a leaf tensor of "
                "2 dimensions and 16 elements"));
}

TEST_F(Misuse, AnOlderTensorThatForwardDidNotUse) {
  const at::Tensor older = at::sin(other);
  EXPECT_THAT(error_when([](const at::Tensor& h) { return Tensors{h * 2}; },
                         [=](const at::Tensor& h) { return Tensors{at::mm(h, older)}; }),
              HasSubstr("a result of SinBackward0"));
}

TEST_F(Misuse, AResultWrittenIntoWhatIsCaptured) {
  const at::Tensor buffer = at::zeros({3, 4}, at::kDouble);
  const at::Tensor y = checkpoint(
      [buffer, w = w](const at::Tensor& h) { return at::Tensor(buffer).add_(at::mm(h, w)); }, x);
  EXPECT_THAT(error_of([&] { y.sum().backward(); }),
              HasSubstr("a result of AddBackward0, which is of its first run"));
}

TEST_F(Misuse, OtherOutputs) {
  const auto one = [](const at::Tensor& h) { return Tensors{h * 2}; };
  EXPECT_THAT(error_when(one,
                         [](const at::Tensor& h) {
                           return Tensors{h * 2, h};
                         }),
              HasSubstr("returned 2 outputs when it ran again in backward, and 1 before"));
  EXPECT_THAT(error_when(one, [](const at::Tensor& h) { return Tensors{h.narrow(0, 0, 2) * 2}; }),
              HasSubstr("output 0 of a region is Double of [2, 4] when it runs again in backward, "
                        "and was Double of [3, 4]"));
  EXPECT_THAT(error_when(one, [](const at::Tensor& h) { return Tensors{(h * 2).to(at::kFloat)}; }),
              HasSubstr("is Float of [3, 4]"));
  EXPECT_THAT(error_when(one, [](const at::Tensor& h) { return Tensors{h.detach() * 2}; }),
              HasSubstr("output 0 of a region has no gradient"));
  EXPECT_THAT(error_when(one, [](const at::Tensor&) { return Tensors{at::Tensor()}; }),
              HasSubstr("output 0 of a region has no gradient"));
}

TEST_F(Misuse, ASecondBackward) {
  const at::Tensor y = checkpoint([w = w](const at::Tensor& h) { return at::mm(h, w); }, x);
  const at::Tensor loss = y.sum();
  loss.backward();
  EXPECT_THAT(error_of([&] { (y * 2).sum().backward(); }), HasSubstr("retain_graph=true"));
}

TEST_F(Misuse, AnInputThatWasChanged) {
  const at::Tensor input = x.detach().clone();
  const at::Tensor y = checkpoint([w = w](const at::Tensor& h) { return at::mm(h, w); }, input);
  input.add_(1);
  EXPECT_THAT(error_of([&] { y.sum().backward(); }),
              HasSubstr("input 0 of a region was changed in place"));
}

TEST_F(Misuse, ARegionThatChangesItsInput) {
  const auto changes = [w = w](const at::Tensor& h) { return at::mm(at::Tensor(h).relu_(), w); };
  EXPECT_THAT(error_of([&] { checkpoint(changes, x.detach().clone()); }),
              HasSubstr("input 0 of a region was changed in place, by the region"));
}

TEST_F(Misuse, AParameterThatWasChanged) {
  const at::Tensor y = checkpoint([w = w](const at::Tensor& h) { return at::mm(h, w); }, x);
  {
    const at::NoGradGuard no_grad;
    w.add_(1);
  }
  EXPECT_THAT(error_of([&] { y.sum().backward(); }), HasSubstr("optimizer step"));
}

TEST_F(Misuse, AnExceptionLeavesTheGraphUsable) {
  const at::Tensor h = at::sin(x);
  auto again = std::make_shared<bool>(false);
  const at::Tensor y = checkpoint(
      [=, w = w, other = other](const at::Tensor& in) {
        return at::mm(in, std::exchange(*again, true) ? other : w);
      },
      h);
  EXPECT_THROW((y * h).sum().backward({}, /*retain_graph=*/true), base::Error);
  *again = false;
  x.mutable_grad() = at::Tensor();
  (y * h).sum().backward();
  EXPECT_TRUE(w.grad().defined());
}

}  // namespace
}  // namespace fullshard::recompute
