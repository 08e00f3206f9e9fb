#include "fullshard/residency/unit_pager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "fullshard/base/error.h"

namespace fullshard::residency {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kSize = 4;

// What the first unit is gathered with can be held back.
class Source final : public UnitSource {
 public:
  explicit Source(std::array<std::array<double, kSize>, 2>& memory) : memory_(memory) {}
  void start(std::span<const int>) override {}
  std::byte* gather(int unit) override {
    if (unit == 0 && held_back) {
      held_back = false;
      called.set_value();
      go_on.get_future().wait();
    }
    return reinterpret_cast<std::byte*>(memory_[static_cast<std::size_t>(unit)].data());
  }
  bool is_current(int) const override { return true; }
  void release(int) override {}
  void end_step() override {}

  bool held_back = true;
  std::promise<void> called, go_on;

 private:
  std::array<std::array<double, kSize>, 2>& memory_;
};

template <typename Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::ErrorCode::kMisuse);
    return error.what();
  }
  return "";
}

// Whoever comes while another thread is inside an operator could take away what it computes with.
TEST(UnitPager, OneThreadAtATimeUsesUnitsThatComeAndGo) {
  std::array<std::array<double, kSize>, 2> memory = {{{1, 1, 1, 1}, {2, 2, 2, 2}}};
  std::vector<at::Tensor> parameters;
  std::vector<PagedUnit> units;
  for (const auto& [name, stay] :
       {std::pair{"sharded", Stay::kBySchedule}, std::pair{"whole", Stay::kNeverAway}}) {
    const auto storage = c10::make_intrusive<PagedStorage>(name, kSize * sizeof(double),
                                                           static_cast<int>(units.size()));
    parameters.push_back(make_paged_tensor(storage, at::kDouble, {kSize}, {1}));
    units.push_back({.name = name,
                     .bytes = kSize * static_cast<std::int64_t>(sizeof(double)),
                     .parameters = {{storage, 0}},
                     .stay = stay});
  }
  auto owned = std::make_unique<Source>(memory);
  Source& source = *owned;
  UnitPager pager(std::move(units), std::move(owned), {}, [] { return false; });

  auto other = std::async(std::launch::async, [&] { return parameters[0].sum().item<double>(); });
  source.called.get_future().wait();
  const auto while_in_use = HasSubstr("while another thread uses parameters of the same sharded");
  EXPECT_THAT(message_of([&] { parameters[0].mul(2); }),
              AllOf(HasSubstr("aten::mul of 'sharded'"), while_in_use));
  EXPECT_THAT(message_of([&] { pager.release(); }), while_in_use);
  EXPECT_THAT(message_of([&] { pager.with_resident(0, [](std::byte*) {}); }), while_in_use);
  EXPECT_EQ(parameters[1].sum().item<double>(), 8);  // that is always there
  source.go_on.set_value();
  EXPECT_EQ(other.get(), 4);
  EXPECT_EQ(message_of([&] { parameters[0].mul(2); }), "");
  pager.release();
}

}  // namespace
}  // namespace fullshard::residency
