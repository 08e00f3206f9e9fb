#include "fullshard/residency/paged_storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

namespace fullshard::residency {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr std::int64_t kSize = 8;

// Maps on access, and remembers what it was told.
class Recorder final : public Pager {
 public:
  void on_access(PagedStorage& storage, Access access, std::string_view op) override {
    log.emplace_back(access, std::string(op));
    storage.map(memory.data());
  }

  std::vector<std::pair<Access, std::string>> log;
  std::array<double, kSize> memory = {1, 2, 3, 4, 5, 6, 7, 8};
};

class Paged : public ::testing::Test {
 protected:
  void SetUp() override {
    storage->attach(&pager);
    tensor = make_paged_tensor(storage, at::kDouble, {kSize}, {1});
  }
  void TearDown() override { storage->orphan(); }

  template <typename Call>
  static std::string message_of(const Call& call) {
    try {
      call();
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }

  c10::intrusive_ptr<PagedStorage> storage =
      c10::make_intrusive<PagedStorage>("layer.weight", sizeof(double) * kSize, 0);
  Recorder pager;
  at::Tensor tensor;
};

TEST_F(Paged, AnOperatorBringsTheMemoryIn) {
  EXPECT_EQ((tensor + 1).sum().item<double>(), 44);
  ASSERT_THAT(pager.log, Not(IsEmpty()));
  EXPECT_EQ(pager.log[0], std::make_pair(Access::kRead, std::string("aten::add")));
}

TEST_F(Paged, ResultsOfArithmeticAreOrdinary) {
  EXPECT_EQ(paged_storage(tensor + 1), nullptr);
  EXPECT_EQ(paged_storage(tensor.view({2, 4})), storage.get());
  EXPECT_EQ(paged_storage(tensor.detach()), storage.get());
}

TEST_F(Paged, ListsOfTensorsAreSeen) {
  at::cat({at::zeros({1}, at::kDouble), tensor});
  EXPECT_EQ(pager.log.at(0).second, "aten::cat");
}

TEST_F(Paged, OptionalTensorsAreSeen) {
  at::linear(at::ones({1, kSize}, at::kDouble), at::ones({kSize, kSize}, at::kDouble), tensor);
  EXPECT_EQ(pager.log.at(0).second, "aten::linear");
}

TEST_F(Paged, WritesAreToldFromReads) {
  tensor.mul_(2);
  EXPECT_EQ(pager.log.at(0), std::make_pair(Access::kWrite, std::string("aten::mul_")));
  EXPECT_EQ(pager.memory[3], 8);
  at::Tensor out = at::empty({kSize}, at::kDouble);
  at::add_out(out, tensor, tensor);
  EXPECT_EQ(pager.log.at(1).first, Access::kRead);
}

TEST_F(Paged, RawAccessThrowsWhileAbsentAndWorksWhilePresent) {
  const std::string name = "layer.weight";
  EXPECT_THAT(message_of([&] { tensor.data_ptr<double>(); }), HasSubstr(name));
  EXPECT_THAT(message_of([&] { tensor.const_data_ptr(); }), HasSubstr(name));
  EXPECT_THAT(message_of([&] { tensor.mutable_data_ptr(); }), HasSubstr(name));
  storage->map(pager.memory.data());
  EXPECT_EQ(tensor.data_ptr<double>(), pager.memory.data());
  storage->unmap();
  EXPECT_THAT(message_of([&] { tensor.data_ptr<double>(); }), HasSubstr(name));
}

TEST_F(Paged, AliasesFollowTheStorage) {
  const at::Tensor view = tensor.narrow(0, 4, 2);
  storage->unmap();
  std::array<double, kSize> elsewhere = {0, 0, 0, 0, 70, 80, 0, 0};
  storage->map(elsewhere.data());
  const BypassScope bypass;
  EXPECT_EQ(view.sum().item<double>(), 150);
}

TEST_F(Paged, BypassTellsNobody) {
  storage->map(pager.memory.data());
  const BypassScope bypass;
  EXPECT_EQ(tensor.sum().item<double>(), 36);
  EXPECT_THAT(pager.log, IsEmpty());
}

TEST_F(Paged, AnOrphanSaysWhatHappened) {
  storage->orphan();
  EXPECT_THAT(message_of([&] { tensor.sum(); }), HasSubstr("has been destroyed"));
  storage->attach(&pager);
}

TEST_F(Paged, ThePagersErrorReachesTheCallerOfBackward) {
  class Refuser final : public Pager {
   public:
    void on_access(PagedStorage& s, Access, std::string_view) override {
      if (refuse) throw std::runtime_error("refused " + s.name());
      s.map(memory.data());
    }
    bool refuse = false;
    std::array<double, kSize> memory = {};
  } refuser;
  storage->attach(&refuser);
  const at::Tensor x = torch::ones({kSize}, at::dtype(at::kDouble).requires_grad(true));
  const at::Tensor y = (x * tensor).sum();
  refuser.refuse = true;
  EXPECT_THAT(message_of([&] { y.backward(); }), HasSubstr("refused layer.weight"));
  storage->orphan();
}

}  // namespace
}  // namespace fullshard::residency
