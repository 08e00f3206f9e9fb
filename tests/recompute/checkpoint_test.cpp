#include "fullshard/recompute/checkpoint.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <stdexcept>
#include <thread>

#include "recompute/both_ways.h"

// Regions of plain models: what comes out of a checkpoint is what comes out without.

namespace fullshard::recompute {
namespace {

using testing::expect_same_gradients;
using testing::random;
using testing::run_one;
using testing::Runner;

class Checkpoint : public ::testing::Test {
 protected:
  Checkpoint() { torch::manual_seed(1); }
  at::Tensor x = random({3, 4});
  at::Tensor w = random({4, 4});
  at::Tensor b = random({4});
  Tensors leaves = {x, w, b};
};

TEST_F(Checkpoint, RunsTheRegionOnceInForwardAndOnceInBackward) {
  auto runs = std::make_shared<int>(0);
  const at::Tensor y = checkpoint(
      [runs, w = w](const at::Tensor& h) {
        ++*runs;
        return at::tanh(at::mm(h, w));
      },
      x);
  EXPECT_EQ(*runs, 1);
  EXPECT_TRUE(at::equal(y, at::tanh(at::mm(x, w))));
  y.sum().backward();
  EXPECT_EQ(*runs, 2);
}

TEST_F(Checkpoint, KeepsWhatTheRegionCapturedUntilItsBackwardAndNoLonger) {
  auto owned = std::make_shared<int>(0);
  const std::weak_ptr<int> watch = owned;
  const at::Tensor y = checkpoint([owned, w = w](const at::Tensor& h) { return at::mm(h, w); }, x);
  owned = nullptr;
  EXPECT_FALSE(watch.expired());
  y.sum().backward();
  EXPECT_TRUE(watch.expired());
}

TEST_F(Checkpoint, ForgetsWhatTheRegionComputed) {
  c10::weak_intrusive_ptr<c10::StorageImpl> inner{c10::intrusive_ptr<c10::StorageImpl>()};
  const at::Tensor y = checkpoint(
      [&inner, w = w](const at::Tensor& h) {
        const at::Tensor middle = at::tanh(at::mm(h, w));
        inner = middle.storage().getWeakStorageImpl();
        return at::mm(middle, w);
      },
      x);
  EXPECT_TRUE(inner.expired());
  y.sum().backward();
  EXPECT_TRUE(inner.expired());
}

TEST_F(Checkpoint, WithoutGradientsItIsACall) {
  const at::NoGradGuard no_grad;
  const at::Tensor y = checkpoint([w = w](const at::Tensor& h) { return at::mm(h, w); }, x);
  EXPECT_FALSE(y.requires_grad());
  const c10::InferenceMode inference;
  EXPECT_TRUE(checkpoint([w = w](const at::Tensor& h) { return at::mm(h, w); }, x).is_inference());
}

TEST_F(Checkpoint, TakesModulesAndSeveralInputsAndOptions) {
  torch::nn::Linear layer(4, 2);
  layer->to(at::kDouble);
  checkpoint(layer, x).sum().backward();
  EXPECT_TRUE(at::allclose(layer->bias.grad(), at::full({2}, 3.0, at::kDouble)));
  const auto times = [](const at::Tensor& first, const at::Tensor& second) {
    return first * second;
  };
  x.mutable_grad() = at::Tensor();
  checkpoint({.preserve_rng_state = false}, times, x, x.detach()).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), x));
  EXPECT_EQ(checkpoint([w = w] { return w * 2; }).sizes(), w.sizes());
}

TEST_F(Checkpoint, GradientsOfInputsAndOfWhatIsCaptured) {
  expect_same_gradients(leaves, [&](const Runner& run) {
    const at::Tensor h = at::sin(x);
    const at::Tensor side = at::cos(b);
    const auto body = [&, side](const at::Tensor& in) { return at::tanh(at::mm(in, w) + side); };
    (run_one(run, body, h) * h * side).sum().backward();
  });
}

TEST_F(Checkpoint, InputsNeedNoGradient) {
  expect_same_gradients({w}, [&](const Runner& run) {
    run_one(
        run, [&](const at::Tensor& h) { return at::mm(h, w); }, x.detach())
        .sum()
        .backward();
  });
}

TEST_F(Checkpoint, FrozenParameters) {
  w.set_requires_grad(false);
  expect_same_gradients({x, b, w}, [&](const Runner& run) {
    run_one(
        run, [&](const at::Tensor& h) { return at::mm(h, w) + b; }, x)
        .pow(2)
        .sum()
        .backward();
  });
}

TEST_F(Checkpoint, RegionsWithoutAnythingToTrain) {
  const at::Tensor y = checkpoint([](const at::Tensor& h) { return h * 2; }, x.detach());
  EXPECT_FALSE(y.requires_grad());
  expect_same_gradients({x}, [&](const Runner& run) {
    run_one(
        run, [](const at::Tensor& h) { return at::gelu(h); }, x)
        .sum()
        .backward();
  });
}

TEST_F(Checkpoint, SameParametersInSeveralRegionsAndOutside) {
  expect_same_gradients(leaves, [&](const Runner& run) {
    const auto body = [&](const at::Tensor& h) { return at::tanh(at::mm(h, w) + b); };
    at::Tensor h = run_one(run, body, x);
    h = run_one(run, body, h) + body(h);
    run_one(run, body, h).sum().backward();
  });
}

TEST_F(Checkpoint, Nested) {
  expect_same_gradients(leaves, [&](const Runner& run) {
    const auto inner = [&](const at::Tensor& h) { return at::tanh(at::mm(h, w)); };
    const auto middle = [&](const at::Tensor& h) { return run_one(run, inner, h * 2) + b; };
    const auto outer = [&](const at::Tensor& h) {
      return run_one(run, middle, at::sin(h)) * run_one(run, inner, h);
    };
    run_one(run, outer, x).pow(2).sum().backward();
  });
}

TEST_F(Checkpoint, SeveralOutputsSomeOfThemUnused) {
  expect_same_gradients(leaves, [&](const Runner& run) {
    const auto body = [&](const Tensors& in) {
      const at::Tensor h = at::mm(in[0], w);
      return Tensors{at::tanh(h), h.argmax(1), h + in[1], h * 0.5, {}};
    };
    const Tensors out = run(body, {x, b});
    EXPECT_EQ(out[1].scalar_type(), at::kLong);
    EXPECT_FALSE(out[1].requires_grad());
    EXPECT_FALSE(out[4].defined());
    (out[0] * out[3]).sum().backward();
  });
}

TEST_F(Checkpoint, OutputsThatAreInputsOrOlderTensors) {
  expect_same_gradients(leaves, [&](const Runner& run) {
    const at::Tensor h = at::sin(x);
    const Tensors out = run(
        [&](const Tensors& in) {
          return Tensors{in[0], w, at::mm(in[0], w)};
        },
        {h});
    EXPECT_TRUE(out[0].is_same(h));
    EXPECT_TRUE(out[1].is_same(w));
    (out[0] * out[2] + out[1].sum()).sum().backward();
  });
}

TEST_F(Checkpoint, AViewOfAnInputComesBackAsACopy) {
  expect_same_gradients({x, w}, [&](const Runner& run) {
    const at::Tensor h = at::sin(x);
    at::Tensor out = run_one(
                         run, [](const at::Tensor& in) { return in.t(); }, h)
                         .clone();
    out.mul_(2);
    (at::mm(w, out) + h.sum()).sum().backward();
  });
  at::Tensor out = checkpoint([](const at::Tensor& in) { return in.t(); }, x);
  const at::Tensor before = x.detach().clone();
  out.mul_(2);
  EXPECT_TRUE(at::equal(x, before));
}

TEST_F(Checkpoint, OutputsMayBeWrittenTo) {
  expect_same_gradients(leaves, [&](const Runner& run) {
    at::Tensor out = run_one(
        run, [&](const at::Tensor& h) { return at::mm(h, w) + b; }, x);
    out.add_(1).mul_(3);
    out.sum().backward();
  });
}

TEST_F(Checkpoint, ViewsOfWhatWasWrittenToBefore) {
  expect_same_gradients(leaves, [&](const Runner& run) {
    const at::Tensor base = at::sin(w);
    const at::Tensor input = base.narrow(0, 0, 3);
    const at::Tensor captured = base.narrow(0, 1, 3);
    const at::Tensor output = base.narrow(0, 1, 2);
    base.mul_(2);
    const auto product = [=](const at::Tensor& h) { return h * captured; };
    const auto body = [=](const Tensors& in) {
      return Tensors{run_one(run, product, in[0]) * in[1] + captured, output};
    };
    const Tensors out = run(body, {x, input});
    const at::Tensor loss = (out[0] * b + captured).sum() + out[1].pow(2).sum();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
  });
}

TEST_F(Checkpoint, ViewsThatTheRegionMakesOfOlderTensors) {
  expect_same_gradients(leaves, [&](const Runner& run) {
    const at::Tensor h = at::sin(x);
    const auto body = [&](const Tensors& in) {
      const at::Tensor part = in[0].as_strided({2, 4}, {4, 1});
      return Tensors{at::mm(part, w).exp(), part};
    };
    const Tensors out = run(body, {h});
    (out[0] * out[1] * b).sum().backward();
  });
}

TEST_F(Checkpoint, WritesToWhatTheRegionHasMade) {
  expect_same_gradients(leaves, [&](const Runner& run) {
    const auto body = [&](const at::Tensor& h) {
      at::Tensor buffer = at::zeros({3, 8}, at::kDouble);
      buffer.narrow(1, 0, 4).copy_(at::mm(h, w));
      buffer.narrow(1, 4, 4).add_(b);
      return buffer.narrow(1, 2, 4);
    };
    run_one(run, body, x).pow(2).sum().backward();
  });
}

TEST_F(Checkpoint, DropoutDrawsTheSameMasks) {
  expect_same_gradients(leaves, [&](const Runner& run) {
    const auto body = [&](const at::Tensor& h) {
      return at::dropout(at::mm(at::dropout(h, 0.5, true), w), 0.3, true);
    };
    const at::Tensor h = run_one(run, body, x);
    const at::Tensor noise = at::rand({4}, at::kDouble);  // draws between forward and backward
    run_one(run, body, h * noise).sum().backward();
  });
}

TEST_F(Checkpoint, BackwardLeavesTheRandomNumbersAlone) {
  const auto drawn_after = [&](const Runner& run) {
    torch::manual_seed(4);
    run_one(
        run, [](const at::Tensor& h) { return at::dropout(h, 0.5, true); }, x)
        .sum()
        .backward();
    return at::rand({5});
  };
  EXPECT_TRUE(at::equal(drawn_after(testing::plainly), drawn_after(testing::checkpointed)));
}

TEST_F(Checkpoint, WithoutTheStateOfRandomNumbersTheMasksDiffer) {
  const at::Tensor ones = at::ones({1000}).requires_grad_();
  const at::Tensor y = checkpoint(
      {.preserve_rng_state = false}, [](const at::Tensor& h) { return at::dropout(h, 0.5, true); },
      ones);
  y.sum().backward();
  EXPECT_FALSE(at::equal(ones.grad(), y));
}

TEST_F(Checkpoint, AutocastIsAsItWasInForward) {
  const at::Tensor input = at::randn({3, 4}).requires_grad_();
  const at::Tensor weight = at::randn({4, 4}).requires_grad_();
  std::vector<at::ScalarType> types;
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::mm(input, weight);  // the cast of the weight may be remembered
  const at::Tensor y = checkpoint(
      [&types, weight](const at::Tensor& h) {
        const at::Tensor out = at::mm(h, weight);
        types.push_back(out.scalar_type());
        return out;
      },
      input);
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  y.sum().backward();
  EXPECT_EQ(types, (std::vector{at::kBFloat16, at::kBFloat16}));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
  EXPECT_EQ(weight.grad().scalar_type(), at::kFloat);
}

TEST_F(Checkpoint, HooksRunOnce) {
  expect_same_gradients(leaves, [&](const Runner& run) {
    const at::Tensor h = at::sin(x);
    h.register_hook([](const at::Tensor& gradient) { return gradient * 3; });
    const auto on_w = w.register_hook([](const at::Tensor& gradient) { return gradient * 5; });
    const auto body = [&](const at::Tensor& in) {
      const at::Tensor inside = at::tanh(at::mm(in, w));
      inside.register_hook([](const at::Tensor& gradient) { return gradient * 7; });
      return inside + b;
    };
    const at::Tensor out = run_one(run, body, h);
    out.register_hook([](const at::Tensor& gradient) { return gradient * 11; });
    out.sum().backward();
    w.remove_hook(on_w);
  });
}

TEST_F(Checkpoint, HooksThatTheRegionRegistersOutsideRunTwice) {
  auto calls = std::make_shared<int>(0);
  const auto body = [calls, w = w](const at::Tensor& h) {
    const auto count = [calls](const at::Tensor&) { ++*calls; };
    h.register_hook(count);
    w.register_hook(count);
    return at::mm(h, w);
  };
  checkpoint(body, at::sin(x)).sum().backward();
  EXPECT_EQ(*calls, 4);
}

TEST_F(Checkpoint, RetainedGraphs) {
  expect_same_gradients(leaves, [&](const Runner& run) {
    const auto body = [&](const at::Tensor& h) { return at::tanh(at::mm(h, w) + b); };
    const at::Tensor loss = run_one(run, body, run_one(run, body, x)).sum();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
  });
}

TEST_F(Checkpoint, GradientsOfSomeInputsOnly) {
  const auto run = [&](const Runner& how) {
    const at::Tensor h = at::sin(x);
    const at::Tensor y = run_one(
        how, [&](const at::Tensor& in) { return at::tanh(at::mm(in, w) + b); }, h);
    return torch::autograd::grad({y.sum()}, {h, b});
  };
  const Tensors expected = run(testing::plainly);
  const Tensors actual = run(testing::checkpointed);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(actual[i], expected[i]));
  EXPECT_FALSE(w.grad().defined());
}

TEST_F(Checkpoint, SecondOrderGradients) {
  const auto penalty = [&](const Runner& run) {
    const auto inner = [&](const at::Tensor& h) { return at::tanh(at::mm(h, w)); };
    const auto outer = [&](const at::Tensor& h) { return run_one(run, inner, at::sin(h)) + b * h; };
    const at::Tensor h = at::sin(x);
    const at::Tensor y = run_one(run, outer, h) * h;
    const at::Tensor slope = torch::autograd::grad({y.pow(2).sum()}, {x}, {}, true, true)[0];
    (slope.pow(2).sum() + y.sum()).backward();
  };
  expect_same_gradients(leaves, penalty);
  EXPECT_TRUE(w.grad().defined());
}

TEST_F(Checkpoint, ThirdOrderGradients) {
  expect_same_gradients({x, w}, [&](const Runner& run) {
    const at::Tensor y = run_one(
        run, [&](const at::Tensor& h) { return at::mm(h, w).sin(); }, x);
    const at::Tensor first = torch::autograd::grad({y.sum()}, {x}, {}, true, true)[0];
    const at::Tensor second = torch::autograd::grad({first.pow(2).sum()}, {w}, {}, true, true)[0];
    second.pow(2).sum().backward();
  });
}

TEST_F(Checkpoint, ForwardAndBackwardInDifferentThreads) {
  const at::Tensor h = at::sin(x);
  for (int i = 0; i < 100; ++i) at::sin(x);  // this thread has made more nodes than the other will
  const at::Tensor y =
      checkpoint([w = w](const at::Tensor& in) { return at::tanh(at::mm(in, w)); }, h);
  std::thread([&] { (y * h).sum().backward(); }).join();
  const at::Tensor gradient = x.grad().clone();
  x.mutable_grad() = at::Tensor();
  std::thread([&] {
    const at::Tensor other =
        checkpoint([w = w](const at::Tensor& in) { return at::tanh(at::mm(in, w)); }, at::sin(x));
    (other * at::sin(x)).sum().backward();
  }).join();
  EXPECT_TRUE(at::allclose(x.grad(), gradient));
}

// The thread of the backward has made no node yet, this one many.
TEST_F(Checkpoint, NestedCapturesWithBackwardInAnotherThread) {
  expect_same_gradients(leaves, [&](const Runner& run) {
    for (int i = 0; i < 100; ++i) at::sin(x);
    const at::Tensor side = at::cos(b);
    const auto inner = [side, this](const at::Tensor& h) { return at::tanh(at::mm(h, w) + side); };
    const auto outer = [&](const at::Tensor& h) { return run_one(run, inner, at::sin(h)); };
    const at::Tensor loss = (run_one(run, outer, x) * side).sum();
    std::thread([&] { loss.backward({}, /*retain_graph=*/true); }).join();
    std::thread([&] { loss.backward(); }).join();
  });
}

// So deep that libtorch goes on in other threads.
TEST_F(Checkpoint, DeeplyNestedCaptures) {
  expect_same_gradients(leaves, [&](const Runner& run) {
    const at::Tensor side = at::cos(b);
    std::function<at::Tensor(const at::Tensor&)> body = [&](const at::Tensor& h) {
      return at::tanh(at::mm(h, w) + side);
    };
    for (int depth = 0; depth < 70; ++depth) {
      body = [&run, side, inner = body](const at::Tensor& h) {
        return run_one(run, inner, h) + side;
      };
    }
    (run_one(run, body, x) * side).sum().backward();
  });
}

TEST_F(Checkpoint, LongChains) {
  at::Tensor h = at::ones({1}).requires_grad_();
  const at::Tensor first = h;
  for (int i = 0; i < 50'000; ++i) {
    h = checkpoint(
        {.preserve_rng_state = false}, [](const at::Tensor& in) { return in + 1; }, h);
  }
  h.backward();
  EXPECT_EQ(first.grad().item<float>(), 1);
}

TEST_F(Checkpoint, AnExceptionInForwardReachesTheCaller) {
  const auto fail = [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("region"); };
  EXPECT_THROW(checkpoint(fail, x), std::runtime_error);
}

TEST_F(Checkpoint, AnExceptionInBackwardReachesTheCallerAndLeavesNothing) {
  auto fails = std::make_shared<bool>(false);
  const at::Tensor y = checkpoint(
      [fails, w = w](const at::Tensor& h) {
        const at::Tensor drawn = at::dropout(h, 0.5, true);
        if (*fails) throw std::runtime_error("region");
        return at::mm(drawn, w);
      },
      x);
  *fails = true;
  const at::Tensor state = at::detail::getDefaultCPUGenerator().get_state();
  EXPECT_THROW(y.sum().backward({}, /*retain_graph=*/true), std::runtime_error);
  EXPECT_TRUE(at::equal(at::detail::getDefaultCPUGenerator().get_state(), state));
  EXPECT_FALSE(w.grad().defined());
  *fails = false;
  y.sum().backward();
  EXPECT_TRUE(w.grad().defined());
}

TEST_F(Checkpoint, PeakOfTensorsKeptForBackward) {
  // Storages alive between forward and backward: all that 8 layers made, or one input of each.
  const auto kept = [&](const Runner& run) {
    std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> made;
    const auto note = [&](const at::Tensor& tensor) {
      made.push_back(tensor.storage().getWeakStorageImpl());
      return tensor;
    };
    at::Tensor h = x;
    for (int layer = 0; layer < 8; ++layer) {
      h = run_one(
          run,
          [&](const at::Tensor& in) {
            at::Tensor out = in;
            for (int i = 0; i < 4; ++i) out = note(at::tanh(at::mm(out, w)));
            return out;
          },
          h);
    }
    return std::count_if(made.begin(), made.end(),
                         [](const auto& each) { return !each.expired(); });
  };
  EXPECT_EQ(kept(testing::plainly), 8 * 4);
  EXPECT_EQ(kept(testing::checkpointed), 8);
}

}  // namespace
}  // namespace fullshard::recompute
