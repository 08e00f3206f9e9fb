#include "fuzz/random_net.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "fullshard/recompute/checkpoint.h"

namespace fullshard::fuzz {
namespace {

// Large: a width of 1 or 2 may have next to no variance, and rounding errors would be blown up.
constexpr double kNormEpsilon = 0.1;

struct Linear final : Layer {
  Linear(std::int64_t width, bool with_bias) {
    weight = register_parameter("weight", at::randn({width, width}) / 2);
    if (with_bias) bias = register_parameter("bias", at::randn({width}) / 4);
  }
  at::Tensor forward(const at::Tensor& h, std::int64_t) override {
    return at::linear(h, weight, bias);
  }
  at::Tensor weight, bias;
};

struct Tied final : Layer {
  explicit Tied(const at::Tensor& shared) {
    weight = register_parameter("weight", shared);
    bias = register_parameter("bias", at::randn({shared.size(0)}) / 4);
  }
  at::Tensor forward(const at::Tensor& h, std::int64_t) override {
    return at::linear(h, weight.t(), bias);
  }
  at::Tensor weight, bias;
};

struct Norm final : Layer {
  explicit Norm(std::int64_t width) : norm(torch::nn::LayerNormOptions({width}).eps(kNormEpsilon)) {
    register_module("norm", norm);
  }
  at::Tensor forward(const at::Tensor& h, std::int64_t) override { return norm(h); }
  torch::nn::LayerNorm norm;
};

struct Scalar final : Layer {
  Scalar() { factor = register_parameter("factor", at::rand({}) + 0.5); }
  at::Tensor forward(const at::Tensor& h, std::int64_t) override { return h * factor; }
  at::Tensor factor;
};

struct Empty final : Layer {
  explicit Empty(std::int64_t width) {
    nothing = register_parameter("nothing", at::empty({0, width}));
  }
  at::Tensor forward(const at::Tensor& h, std::int64_t) override {
    return at::cat({h, nothing}, 0) * 0.9;
  }
  at::Tensor nothing;
};

struct Gate final : Layer {
  explicit Gate(std::int64_t size) { value = register_parameter("value", at::rand({size}) + 0.5); }
  at::Tensor forward(const at::Tensor& h, std::int64_t) override {
    const std::int64_t used = std::min(value.size(0), h.size(1));
    return h + at::constant_pad_nd(value.narrow(0, 0, used), {0, h.size(1) - used});
  }
  at::Tensor value;
};

struct Block final : Layer {
  Block(std::int64_t width, std::int64_t inner)
      : norm(torch::nn::LayerNormOptions({width}).eps(kNormEpsilon)),
        up(width, inner),
        down(inner, width) {
    register_module("norm", norm);
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& h, std::int64_t) override {
    return h + down(torch::gelu(up(norm(h))));
  }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
};

struct Bank final : Layer {
  Bank(std::int64_t width, std::int64_t slices) {
    weight = register_parameter("weight", at::randn({slices, width, width}) / 2);
  }
  at::Tensor forward(const at::Tensor& h, std::int64_t pass) override {
    return at::mm(h, weight[pass % weight.size(0)]);
  }
  at::Tensor weight;
};

struct Convolution final : Layer {
  explicit Convolution(std::int64_t channels)
      : up(torch::nn::Conv1dOptions(1, channels, 3).padding(1)),
        down(torch::nn::Conv1dOptions(channels, 1, 1).bias(false)) {
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& h, std::int64_t) override {
    return down(torch::tanh(up(h.unsqueeze(1)))).squeeze(1);
  }
  torch::nn::Conv1d up, down;
};

struct Recurrent final : Layer {
  explicit Recurrent(std::int64_t width)
      : gru(torch::nn::GRUOptions(width, width).batch_first(true)) {
    register_module("gru", gru);
  }
  at::Tensor forward(const at::Tensor& h, std::int64_t) override {
    return std::get<0>(gru(at::stack({h, -h}, 1))).select(1, 1);
  }
  torch::nn::GRU gru;
};

const char* name_of(Kind kind) {
  static constexpr const char* kNames[] = {"linear", "norm", "scalar", "empty",       "gate",
                                           "block",  "bank", "tied",   "convolution", "recurrent"};
  return kNames[static_cast<int>(kind)];
}

bool has_inner(Kind kind) {
  return kind == Kind::kGate || kind == Kind::kBlock || kind == Kind::kBank ||
         kind == Kind::kConvolution;
}

LayerSpec random_layer(Random& random, const std::vector<LayerSpec>& before) {
  static const std::vector<Kind> kKinds = {Kind::kLinear, Kind::kLinear,      Kind::kNorm,
                                           Kind::kScalar, Kind::kEmpty,       Kind::kGate,
                                           Kind::kBlock,  Kind::kBlock,       Kind::kBank,
                                           Kind::kTied,   Kind::kConvolution, Kind::kRecurrent};
  LayerSpec spec{.kind = random.of(kKinds),
                 .inner = random.between(1, 9),
                 .bias = !random.one_in(3),
                 .twin = random.one_in(8)};
  if (spec.kind != Kind::kTied) return spec;
  std::vector<int> matrices;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i].kind == Kind::kLinear) matrices.push_back(static_cast<int>(i));
  }
  if (matrices.empty()) {
    spec.kind = Kind::kLinear;
  } else {
    spec.of = random.of(matrices);
  }
  return spec;
}

// Equal layers, as transformers have them.
void make_stack(std::vector<LayerSpec>& layers) {
  for (LayerSpec& layer : layers) {
    layer.kind = layers.front().kind;
    layer.inner = layers.front().inner;
    layer.bias = layers.front().bias;
  }
}

CallSpec random_call(Random& random, int layers, int ranks) {
  CallSpec call{.layer = random.between(0, layers - 1), .residual = random.one_in(2)};
  if (random.one_in(5)) {
    call.period = random.between(2, 3);
    call.phase = random.between(0, call.period - 1);
  }
  if (random.one_in(12)) call.only_rank = random.between(0, ranks - 1);
  return call;
}

void choose_checkpoints(Random& random, NetSpec& spec) {
  if (!random.one_in(3)) return;
  for (CallSpec& call : spec.calls) call.checkpointed = random.one_in(2);
  if (random.one_in(2)) return;
  const int calls = static_cast<int>(spec.calls.size());
  spec.region_begin = random.between(0, calls - 1);
  spec.region_end = random.between(spec.region_begin + 1, calls);
}

}  // namespace

NetSpec random_net(Random& random, int ranks) {
  NetSpec spec{.width = random.between(1, 7)};
  const int layers = random.between(1, 7);
  for (int i = 0; i < layers; ++i) spec.layers.push_back(random_layer(random, spec.layers));
  if (random.one_in(6)) make_stack(spec.layers);
  const int calls = random.between(1, layers + 4);
  for (int i = 0; i < calls; ++i) spec.calls.push_back(random_call(random, layers, ranks));
  spec.penalty = random.one_in(3);
  spec.slope = random.one_in(5);
  spec.cached = random.one_in(5);
  spec.peek = random.one_in(6);
  choose_checkpoints(random, spec);
  // Ranks must make the same backward passes, and a recomputed call has no second derivative.
  const bool alike = std::all_of(spec.calls.begin(), spec.calls.end(),
                                 [](const CallSpec& call) { return call.only_rank < 0; });
  if (!alike || spec.slope || !random.one_in(3)) return spec;
  for (CallSpec& call : spec.calls) call.recomputed = random.one_in(2);
  return spec;
}

std::string to_string(const NetSpec& spec) {
  std::string text = fmt::format("width {}; layers:", spec.width);
  for (const LayerSpec& layer : spec.layers) {
    text += fmt::format(" {}", name_of(layer.kind));
    if (layer.kind == Kind::kLinear && !layer.bias) text += "(no bias)";
    if (layer.kind == Kind::kTied) text += fmt::format("(of {})", layer.of);
    if (has_inner(layer.kind)) text += fmt::format("({})", layer.inner);
    if (layer.twin) text += "(twin)";
  }
  text += "; calls:";
  for (const CallSpec& call : spec.calls) {
    text += fmt::format(" {}{}{}{}", call.layer, call.residual ? "+" : "",
                        call.recomputed ? "(recomputed)" : "",
                        call.checkpointed ? "(checkpointed)" : "");
    if (call.period > 1) text += fmt::format("(passes {} mod {})", call.phase, call.period);
    if (call.only_rank >= 0) text += fmt::format("(rank {})", call.only_rank);
  }
  if (spec.region_begin < spec.region_end) {
    text += fmt::format("; region of calls {} to {}", spec.region_begin, spec.region_end - 1);
  }
  return text + fmt::format("{}{}{}{}", spec.penalty ? "; penalty" : "",
                            spec.slope ? "; slope" : "", spec.cached ? "; cached" : "",
                            spec.peek ? "; peek" : "");
}

Net::Net(NetSpec spec) : spec_(std::move(spec)) {
  register_module("layers", layers_);
  for (std::size_t i = 0; i < spec_.layers.size(); ++i) {
    const auto layer = make(spec_.layers[i]);
    layers_->push_back(layer);
    if (spec_.layers[i].twin) register_module(fmt::format("twin{}", i), layer);
  }
  head_ = register_module("head", torch::nn::Linear(spec_.width, spec_.width));
}

std::shared_ptr<Layer> Net::make(const LayerSpec& spec) const {
  switch (spec.kind) {
    case Kind::kLinear: return std::make_shared<Linear>(spec_.width, spec.bias);
    case Kind::kNorm: return std::make_shared<Norm>(spec_.width);
    case Kind::kScalar: return std::make_shared<Scalar>();
    case Kind::kEmpty: return std::make_shared<Empty>(spec_.width);
    case Kind::kGate: return std::make_shared<Gate>(spec.inner);
    case Kind::kBlock: return std::make_shared<Block>(spec_.width, spec.inner);
    case Kind::kBank: return std::make_shared<Bank>(spec_.width, spec.inner);
    case Kind::kTied:
      return std::make_shared<Tied>(layers_->at<Linear>(static_cast<std::size_t>(spec.of)).weight);
    case Kind::kConvolution: return std::make_shared<Convolution>(spec.inner);
    case Kind::kRecurrent: return std::make_shared<Recurrent>(spec_.width);
  }
  return nullptr;
}

at::Tensor Net::call_layer(const CallSpec& call, const at::Tensor& h, const Pass& pass) {
  const auto layer =
      std::dynamic_pointer_cast<Layer>(layers_[static_cast<std::size_t>(call.layer)]);
  if (call.checkpointed) {
    const auto region = [=](const at::Tensor& input) { return layer->forward(input, pass.number); };
    return recompute::checkpoint(region, h);
  }
  if (!call.recomputed || !h.requires_grad()) return layer->forward(h, pass.number);
  const auto& body = bodies_.emplace_back(
      [=](const at::Tensor& input) { return layer->forward(input, pass.number); });
  return testing::Recomputed::apply(h, &body);
}

at::Tensor Net::run_calls(at::Tensor h, int begin, int end, const Pass& pass) {
  for (int i = begin; i < end; ++i) {
    const CallSpec& call = spec_.calls[static_cast<std::size_t>(i)];
    if (call.only_rank >= 0 && call.only_rank != pass.rank) continue;
    if (pass.number % call.period != call.phase) continue;
    const at::Tensor out = torch::tanh(call_layer(call, h, pass));
    h = call.residual ? h + out : out;
    if (i == static_cast<int>(spec_.calls.size() / 2)) middle_ = h;
  }
  return h;
}

at::Tensor Net::run(const at::Tensor& x, const Pass& pass) {
  const int end = static_cast<int>(spec_.calls.size());
  const auto region = [this, pass](const at::Tensor& h) {
    return run_calls(h, spec_.region_begin, spec_.region_end, pass);
  };
  at::Tensor h = run_calls(x, 0, spec_.region_begin, pass);
  if (spec_.region_begin < spec_.region_end) h = recompute::checkpoint(region, h);
  return head_(run_calls(h, spec_.region_end, end, pass));
}

at::Tensor Net::loss(const at::Tensor& x, const at::Tensor& y) {
  return (run(x, {}) - y).pow(2).mean();
}

at::Tensor Net::all_losses(const at::Tensor& x, const at::Tensor& y, const Pass& pass) {
  const at::Tensor input = spec_.slope ? x.detach().clone().requires_grad_() : x;
  const at::Tensor out = run(input, pass);
  at::Tensor loss = (out - y).pow(2).mean();
  if (spec_.slope) {
    const at::Tensor slope = torch::autograd::grad({out.sum()}, {input}, {}, true, true)[0];
    loss = loss + 0.1 * slope.pow(2).sum(1).mean();
  }
  if (spec_.penalty) {
    std::vector<at::Tensor> all;
    for (const at::Tensor& parameter : parameters()) all.push_back(parameter.flatten());
    loss = loss + 0.01 * at::cat(all).pow(2).sum();
  }
  return loss;
}

void Net::backward(const testing::Batch& batch, const Pass& pass, double scale) {
  middle_ = at::Tensor();
  bodies_.clear();
  const at::Tensor loss = all_losses(batch.x, batch.y, pass) * scale;
  const at::Tensor middle = middle_;
  if (spec_.peek) {
    const at::NoGradGuard no_grad;
    run(batch.y, {pass.number + 1, pass.rank});
  }
  loss.backward({}, /*retain_graph=*/spec_.cached);
  if (!spec_.cached) return;
  // All ranks must make the same number of backward passes, also those that skipped the middle.
  at::Tensor second = head_->bias.cos().sum();
  if (middle.defined()) second = second + middle.abs().mean();
  (second * scale).backward();
}

std::shared_ptr<Net> build(const NetSpec& spec) {
  const auto model = testing::build_seeded([&] { return std::make_shared<Net>(spec); });
  model->to(at::kDouble);
  return std::static_pointer_cast<Net>(model);
}

}  // namespace fullshard::fuzz
