#include "bench/measure/subject.h"

#include <torch/torch.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "fullshard/base/check.h"
#include "fullshard/models/bert.h"
#include "fullshard/models/gpt.h"
#include "fullshard/models/resnet.h"
#include "fullshard/models/vit.h"

namespace fullshard::bench::measure {
namespace {

using Draw = std::function<Batch(std::int64_t rows, at::Generator& random)>;

template <typename Holder>
Subject subject_of(const Holder& holder, Draw draw) {
  const auto net = holder.ptr();
  return {.module = net,
          .loss = [net](const Batch& batch) { return net->loss(batch.inputs, batch.targets); },
          .draw = std::move(draw),
          .parameters = models::parameter_count(net->options())};
}

at::Tensor draw_tokens(const StepShape& shape, std::int64_t rows, std::int64_t seq,
                       at::Generator& random) {
  return at::randint(shape.vocab, {rows, seq}, random, at::TensorOptions(at::kLong));
}

Draw next_tokens(const StepShape& shape) {
  return [shape](std::int64_t rows, at::Generator& random) {
    const at::Tensor all = draw_tokens(shape, rows, shape.seq + 1, random);
    return Batch{all.narrow(1, 0, shape.seq), all.narrow(1, 1, shape.seq)};
  };
}

/// 15 % of the tokens are masked, equally many in each row, so that the mean over ranks of their
/// means is the mean of all.
Draw masked_tokens(const StepShape& shape) {
  return [shape](std::int64_t rows, at::Generator& random) {
    constexpr std::int64_t kMask = 0;
    constexpr std::int64_t kNoTarget = -100;
    const std::int64_t masked = std::max<std::int64_t>(shape.seq * 15 / 100, 1);
    const at::Tensor tokens = draw_tokens(shape, rows, shape.seq, random);
    const at::Tensor order = at::rand({rows, shape.seq}, random, at::TensorOptions(at::kFloat));
    const at::Tensor places = std::get<1>(order.topk(masked, 1));
    const at::Tensor targets =
        at::full_like(tokens, kNoTarget).scatter(1, places, tokens.gather(1, places));
    return Batch{tokens.scatter(1, places, kMask), targets};
  };
}

Draw images(const StepShape& shape) {
  return [shape](std::int64_t rows, at::Generator& random) {
    constexpr std::int64_t kChannels = 3;
    const at::Tensor pixels = at::randn({rows, kChannels, shape.image, shape.image}, random,
                                        at::TensorOptions(at::kFloat));
    return Batch{pixels, at::randint(shape.classes, {rows}, random, at::TensorOptions(at::kLong))};
  };
}

Subject make_gpt(const StepShape& shape, std::int64_t recompute) {
  const models::GptOptions options{.vocab_size = shape.vocab,
                                   .seq_len = shape.seq,
                                   .dim = shape.dim,
                                   .n_layers = shape.layers,
                                   .n_heads = shape.heads,
                                   .recompute_every = recompute};
  return subject_of(models::Gpt(options), next_tokens(shape));
}

Subject make_bert(const StepShape& shape) {
  const models::BertOptions options{.vocab_size = shape.vocab,
                                    .seq_len = shape.seq,
                                    .dim = shape.dim,
                                    .n_layers = shape.layers,
                                    .n_heads = shape.heads,
                                    .mlp_dim = 4 * shape.dim};
  return subject_of(models::Bert(options), masked_tokens(shape));
}

Subject make_resnet(const StepShape& shape) {
  constexpr std::int64_t kSmallImages = 64;
  models::ResnetOptions options = models::resnet_of_depth(shape.layers);
  options.n_classes = shape.classes;
  options.small_images = shape.image < kSmallImages;
  Subject subject = subject_of(models::Resnet(options), images(shape));
  subject.depends_on_batch = true;
  return subject;
}

/// With a head that is not zero: the first gradient, which is compared, is then one of all layers.
Subject make_vit(const StepShape& shape) {
  constexpr double kHeadStd = 0.02;
  const models::VitOptions options{.image_size = shape.image,
                                   .patch_size = shape.patch,
                                   .dim = shape.dim,
                                   .n_layers = shape.layers,
                                   .n_heads = shape.heads,
                                   .mlp_dim = 4 * shape.dim,
                                   .n_classes = shape.classes};
  models::Vit model(options);
  torch::nn::init::normal_(model->head->weight, 0.0, kHeadStd);
  return subject_of(model, images(shape));
}

}  // namespace

Subject make_subject(const StepSpec& spec) {
  const StepShape& shape = spec.shape;
  if (shape.model == "bert") return make_bert(shape);
  if (shape.model == "resnet") return make_resnet(shape);
  if (shape.model == "vit") return make_vit(shape);
  FULLSHARD_CHECK_EQ(shape.model, std::string("gpt"));
  return make_gpt(shape, spec.recompute);
}

}  // namespace fullshard::bench::measure
