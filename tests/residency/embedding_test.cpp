#include "residency/embedding.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>

namespace fullshard::residency {
namespace {

constexpr std::int64_t kRows = 20;

at::Tensor new_table() {
  torch::manual_seed(5);
  return at::randn({kRows, 3}, at::kDouble).requires_grad_();
}

at::Tensor few_indices() { return torch::tensor({4, 17, 4, 0}); }

struct CallOptions {
  std::int64_t padding_index = -1;
  bool scale_by_frequency = false;
};

std::optional<at::Tensor> look_up(const at::Tensor& table, const at::Tensor& indices,
                                  const CallOptions& options = {}) {
  std::vector<c10::IValue> stack = {
      "below", table, indices, options.padding_index, options.scale_by_frequency, false};
  bool present = false;
  const bool done = embed_with_sparse_gradient(5, stack, [&] { present = true; });
  EXPECT_EQ(present, done);
  EXPECT_EQ(stack.size(), done ? 2u : 6u);
  EXPECT_TRUE(stack[0].isString());
  if (!done) return std::nullopt;
  return stack[1].toTensor();
}

TEST(SparseEmbedding, IsOnlyUsedWhereItPays) {
  EXPECT_TRUE(look_up(new_table(), few_indices()));
  EXPECT_FALSE(look_up(new_table(), at::arange(kRows / 2)));
  EXPECT_FALSE(look_up(new_table().detach(), few_indices()));
  EXPECT_FALSE(look_up(new_table() * 2, few_indices()));
  EXPECT_FALSE(look_up(new_table(), few_indices(), {.scale_by_frequency = true}));
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(look_up(new_table(), few_indices()));
}

TEST(SparseEmbedding, EqualsTheDenseOne) {
  for (const std::int64_t padding : {-1, 4}) {
    for (const bool tied : {false, true}) {
      std::vector<at::Tensor> results;
      for (const bool sparse : {false, true}) {
        const at::Tensor table = new_table();
        const at::Tensor rows = sparse ? *look_up(table, few_indices(), {.padding_index = padding})
                                       : at::embedding(table, few_indices(), padding);
        at::Tensor loss = rows.pow(3).sum();
        if (tied) loss = loss + at::matmul(rows, table.t()).pow(2).sum();
        loss.backward();
        EXPECT_EQ(table.grad().is_sparse(), sparse && !tied);
        results.push_back(table.grad().to_dense());
      }
      EXPECT_TRUE(at::allclose(results[0], results[1], 1e-12, 1e-14));
    }
  }
}

TEST(SparseEmbedding, WhoLooksAtTheGradientSeesADenseOne) {
  const at::Tensor table = new_table();
  const auto gradient =
      torch::autograd::grad({look_up(table, few_indices())->pow(3).sum()}, {table});
  EXPECT_FALSE(gradient[0].is_sparse());

  bool dense = false;
  table.register_hook([&](const at::Tensor& seen) { dense = !seen.is_sparse(); });
  look_up(table, few_indices())->sum().backward();
  EXPECT_TRUE(dense);
}

TEST(SparseEmbedding, HasSecondDerivatives) {
  std::vector<at::Tensor> results;
  for (const bool sparse : {false, true}) {
    const at::Tensor table = new_table();
    const at::Tensor rows =
        sparse ? *look_up(table, few_indices()) : at::embedding(table, few_indices());
    const auto first = torch::autograd::grad({rows.pow(3).sum()}, {table}, {},
                                             /*retain_graph=*/true, /*create_graph=*/true);
    first[0].pow(2).sum().backward();
    results.push_back(table.grad().to_dense());
  }
  EXPECT_TRUE(at::allclose(results[0], results[1], 1e-12, 1e-14));
}

}  // namespace
}  // namespace fullshard::residency
