#include "fullshard/shard/sync_batch_norm.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>

#include "fullshard/base/error.h"

namespace fullshard::shard {
namespace {

// All dimensions but the features'.
std::vector<std::int64_t> rows_and_places(const at::Tensor& x) {
  std::vector<std::int64_t> dims{0};
  for (std::int64_t i = 2; i < x.dim(); ++i) dims.push_back(i);
  return dims;
}

// One value a feature, in the shape and type that combine with `x`.
at::Tensor by_feature(const at::Tensor& values, const at::Tensor& x) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
  shape[1] = values.numel();
  return values.view(shape).to(x.scalar_type());
}

// Half-precision inputs are computed in float, as torch's own kernels do.
at::Tensor widened(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
}

comm::Buffer buffer_of(const at::Tensor& values) {
  return {values.mutable_data_ptr(), values.numel(), base::DType::kFloat64};
}

const comm::OpTag kStatistics{"statistics of SyncBatchNorm", -1};
const comm::OpTag kGradients{"gradient of SyncBatchNorm", -1};

// Of every feature over the rows of all ranks, in double precision.
struct Statistics {
  at::Tensor mean;
  at::Tensor squares;  ///< sum of squared distances from the mean
  double count = 0;    ///< values a feature
};

// [features of mean, features of squares, count], of this rank's rows alone.
at::Tensor own_statistics(const at::Tensor& input) {
  const at::Tensor x = widened(input);
  const std::int64_t features = x.size(1);
  const std::int64_t count = x.numel() / std::max<std::int64_t>(features, 1);
  at::Tensor row = at::zeros({2 * features + 1}, at::kDouble);
  if (count == 0) return row;
  const auto [variance, mean] = at::var_mean(x, rows_and_places(x), /*unbiased=*/false);
  row.narrow(0, 0, features).copy_(mean);
  row.narrow(0, features, features).copy_(variance).mul_(count);
  row[2 * features] = count;
  return row;
}

// Puts the ranks' parts together around the common mean (Chan, Golub and LeVeque, 1979): a plain
// sum of squares would lose the variance of values far from zero.
Statistics statistics_over_ranks(const at::Tensor& input, comm::Group& group) {
  const std::int64_t features = input.size(1);
  const at::Tensor mine = own_statistics(input);
  const at::Tensor all = at::empty({group.size(), mine.numel()}, at::kDouble);
  group.all_gather(buffer_of(mine), buffer_of(all), {}, kStatistics).wait();

  const at::Tensor means = all.narrow(1, 0, features);
  const at::Tensor squares = all.narrow(1, features, features);
  const at::Tensor counts = all.narrow(1, 2 * features, 1);
  Statistics total;
  total.count = counts.sum().item<double>();
  total.mean = (means * counts).sum(0) / total.count;
  total.squares = (squares + counts * (means - total.mean).pow(2)).sum(0);
  return total;
}

// (x - mean) * inverse_std * weight + bias, where mean and inverse_std, which depend on the inputs
// of all ranks, are given.
struct Normalise : torch::autograd::Function<Normalise> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, const Statistics& statistics,
                            const at::Tensor& inverse_std,
                            const std::shared_ptr<comm::Group>& group) {
    context->save_for_backward(
        {input, weight.value_or(at::Tensor()), statistics.mean, inverse_std});
    context->saved_data["count"] = statistics.count;
    context->saved_data["group"] =
        c10::IValue::make_capsule(c10::make_intrusive<SharedGroup>(group));
    const at::Tensor x = widened(input);
    const at::Tensor distance = x - by_feature(statistics.mean, x);
    at::Tensor y;
    if (weight) {
      const at::Tensor scale = by_feature(inverse_std * weight->to(at::kDouble), x);
      y = at::addcmul(by_feature(*bias, x), distance, scale);
    } else {
      y = distance * by_feature(inverse_std, x);
    }
    return y.to(input.scalar_type());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& weight = saved[1];
    const at::Tensor& inverse_std = saved[3];
    const at::Tensor x = widened(saved[0]);
    const at::Tensor dy = widened(gradients[0]);
    const at::Tensor distance = x - by_feature(saved[2], x);
    const std::int64_t features = x.size(1);

    // [sum of dy, sum of dy * distance] a feature: of this rank, then of all.
    const at::Tensor mine =
        at::cat({dy.sum(rows_and_places(x)), (dy * distance).sum(rows_and_places(x))})
            .to(at::kDouble);
    const at::Tensor all = mine.clone();
    group_of(*context).all_reduce(buffer_of(all), comm::ReduceOp::kSum, kGradients).wait();
    const at::Tensor mean = all / context->saved_data["count"].toDouble();

    const at::Tensor along = by_feature(mean.narrow(0, features, features) * inverse_std.pow(2), x);
    at::Tensor scale = inverse_std;
    if (weight.defined()) scale = scale * weight.to(at::kDouble);
    const at::Tensor dx = (dy - by_feature(mean.narrow(0, 0, features), x) - distance * along)
                              .mul_(by_feature(scale, x))
                              .to(saved[0].scalar_type());
    if (!weight.defined()) return {dx, {}, {}, {}, {}, {}};
    const at::Tensor d_weight = mine.narrow(0, features, features) * inverse_std;
    return {dx,
            d_weight.to(weight.scalar_type()),
            mine.narrow(0, 0, features).to(weight.scalar_type()),
            {},
            {},
            {}};
  }

 private:
  struct SharedGroup : torch::CustomClassHolder {
    explicit SharedGroup(std::shared_ptr<comm::Group> of) : group(std::move(of)) {}
    std::shared_ptr<comm::Group> group;
  };

  static comm::Group& group_of(torch::autograd::AutogradContext& context) {
    const auto held = context.saved_data["group"].toCapsule();
    return *static_cast<SharedGroup*>(held.get())->group;
  }
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& of,
                                     std::shared_ptr<comm::Group> group)
    : NormImplBase(of), group_(std::move(group)) {}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  if (input.dim() >= 2 && input.size(1) == options.num_features()) return;
  std::ostringstream shape;
  shape << input.sizes();
  throw base::Error(base::ErrorCode::kInvalidArgument,
                    fmt::format("SyncBatchNorm of {} features takes [rows, {}, ...], not {}",
                                options.num_features(), options.num_features(), shape.str()));
}

// The weight of this batch in the running statistics.
double SyncBatchNormImpl::count_batch() {
  if (!is_training() || !num_batches_tracked.defined()) return 0;
  num_batches_tracked += 1;
  return options.momentum() ? *options.momentum() : 1 / num_batches_tracked.item<double>();
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  _check_input_dim(input);
  const double momentum = count_batch();
  const bool of_the_batch = is_training() || !running_mean.defined();
  if (is_training() && group_->size() > 1) return forward_over_ranks(input, momentum);
  return at::batch_norm(input, weight, bias, running_mean, running_var, of_the_batch, momentum,
                        options.eps(), /*cudnn_enabled=*/false);
}

at::Tensor SyncBatchNormImpl::forward_over_ranks(const at::Tensor& input, double momentum) {
  Statistics total;
  at::Tensor inverse_std;
  {
    const at::NoGradGuard no_grad;
    total = statistics_over_ranks(input, *group_);
    if (total.count < 2) {
      throw base::Error(
          base::ErrorCode::kInvalidArgument,
          fmt::format("SyncBatchNorm in training needs 2 or more values a feature over all {} "
                      "ranks; there are {}",
                      group_->size(), total.count));
    }
    inverse_std = (total.squares / total.count + options.eps()).rsqrt();
    if (running_mean.defined()) {
      running_mean.lerp_(total.mean.to(running_mean.scalar_type()), momentum);
      running_var.lerp_((total.squares / (total.count - 1)).to(running_var.scalar_type()),
                        momentum);
    }
  }
  const auto given = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  return Normalise::apply(input, given(weight), given(bias), total, inverse_std, group_);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "fullshard::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ", ranks=" << group_->size() << ")";
}

}  // namespace fullshard::shard
