#include "fullshard/residency/unit_pager.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "fullshard/base/check.h"
#include "fullshard/base/error.h"
#include "fullshard/base/text.h"
#include "residency/embedding.h"

namespace fullshard::residency {
namespace {

// A unit that does not leave by schedule does not count against the schedule's limit.
std::int64_t scheduled_bytes(const PagedUnit& unit) {
  return unit.stay == Stay::kBySchedule ? unit.bytes : 0;
}

std::vector<std::int64_t> scheduled_bytes(const std::vector<PagedUnit>& units) {
  std::vector<std::int64_t> bytes;
  bytes.reserve(units.size());
  for (const PagedUnit& unit : units) bytes.push_back(scheduled_bytes(unit));
  return bytes;
}

bool contains(const std::vector<int>& units, int unit) {
  return std::find(units.begin(), units.end(), unit) != units.end();
}

// Operators that record gradients inside a backward pass are forward's, run again; their own
// backward comes next. Those of a backward with create_graph look the same.
schedule::Phase phase_of_operator(bool backward) {
  if (!backward) return schedule::Phase::kForward;
  return at::GradMode::is_enabled() ? schedule::Phase::kRecompute : schedule::Phase::kBackward;
}

}  // namespace

UnitPager::UnitPager(std::vector<PagedUnit> units, std::unique_ptr<UnitSource> source,
                     const schedule::ScheduleOptions& options, std::function<bool()> in_backward)
    : units_(std::move(units)),
      source_(std::move(source)),
      states_(units_.size()),
      follower_(scheduled_bytes(units_), options),
      uses_(units_.size()),
      in_backward_(std::move(in_backward)),
      limit_(options.max_unsharded_bytes),
      depth_(options.limit_all_gathers ? static_cast<std::size_t>(options.forward_prefetch)
                                       : units_.size()),
      bucket_bytes_(options.gather_bucket_bytes),
      kept_(units_.size()),
      next_(units_.size(), -1) {
  gathered_to_stay_.reserve(units_.size());
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const PagedUnit& unit = units_[i];
    for (const PagedParameter& parameter : unit.parameters) parameter.storage->attach(this);
    if (unit.stay == Stay::kNeverAway) map(unit, source_->gather(static_cast<int>(i)));
  }
}

UnitPager::~UnitPager() {
  for (const PagedUnit& unit : units_) {
    for (const PagedParameter& parameter : unit.parameters) parameter.storage->orphan();
  }
}

// Uses units as an operator does.
class UnitPager::UseScope {
 public:
  UseScope(UnitPager& pager, std::string_view call) : pager_(pager) {
    pager_.claim(pager_.units_.front().name, call);
  }
  ~UseScope() { pager_.end_use(); }
  UseScope(const UseScope&) = delete;
  UseScope& operator=(const UseScope&) = delete;

 private:
  UnitPager& pager_;
};

bool UnitPager::begin_use(PagedStorage& storage, std::string_view op) {
  const bool is_always_there =
      units_[static_cast<std::size_t>(storage.index())].stay == Stay::kNeverAway;
  if (pinned() || (is_always_there && source_->is_current(storage.index()))) return false;
  claim(storage.name(), op);
  return true;
}

void UnitPager::claim(const std::string& name, std::string_view op) {
  const std::thread::id self = std::this_thread::get_id();
  std::thread::id user;
  if (user_.load(std::memory_order_relaxed) != self &&
      !user_.compare_exchange_strong(user, self, std::memory_order_acquire)) {
    throw base::Error(
        base::ErrorCode::kMisuse,
        fmt::format("{} of '{}' came while another thread uses parameters of the same sharded "
                    "model; one thread of a rank may do so at a time",
                    op, name));
  }
  ++use_depth_;
}

void UnitPager::end_use() noexcept {
  if (--use_depth_ == 0) user_.store({}, std::memory_order_release);
}

void UnitPager::use_together(std::span<PagedStorage* const> operands) {
  operands_.clear();
  for (const PagedStorage* storage : operands) {
    if (storage->pager() != this || contains(operands_, storage->index())) continue;
    operands_.push_back(storage->index());
  }
  if (operands_ == together_) return;
  check_fit(operands_);
  std::swap(together_, operands_);
  if (held_.size() > 1) held_.erase(held_.begin(), held_.end() - 1);  // the last one touched
}

void UnitPager::check_fit(const std::vector<int>& together) const {
  std::int64_t bytes = 0;
  for (const int unit : together) bytes += scheduled_bytes(units_[static_cast<std::size_t>(unit)]);
  if (limit_ == 0 || bytes <= limit_) return;
  std::string names;
  for (const int unit : together) {
    names += (names.empty() ? "'" : ", '") + units_[static_cast<std::size_t>(unit)].name + "'";
  }
  throw base::Error(
      base::ErrorCode::kInvalidArgument,
      fmt::format("one operator uses parameters of the units {}, {} bytes ({}) together, and "
                  "max_unsharded_bytes leaves {} ({}): raise it, or put them into one unit",
                  names, bytes, base::format_bytes(bytes), limit_, base::format_bytes(limit_)));
}

// How many of the units touched last the operator that touches this one uses as well.
int UnitPager::held_with(int unit) {
  if (held_.empty() || held_.back() != unit) {
    const bool goes_on = !held_.empty() && contains(together_, held_.back());
    if (!contains(together_, unit)) together_.clear();
    if (!goes_on || together_.empty()) held_.clear();
    std::erase(held_, unit);
    held_.push_back(unit);
  }
  return static_cast<int>(held_.size()) - 1;
}

// Not inside the replacement: autograd runs that without gradients, like a pass of inference.
bool UnitPager::replace(PagedStorage& storage, std::string_view op, std::size_t arguments,
                        std::vector<c10::IValue>& stack) {
  return op == "aten::embedding" && embed_with_sparse_gradient(arguments, stack, [&] {
           on_access(storage, Access::kRead, op);
         });
}

void UnitPager::on_access(PagedStorage& storage, Access access, std::string_view op) {
  if (pinned() && access == Access::kWrite && storage.shadowed()) {
    throw base::Error(
        base::ErrorCode::kMisuse,
        fmt::format("{} writes to '{}' through a view that was taken before the unsharded() scope, "
                    "which shows that parameter in another dtype; take views inside the scope",
                    op, storage.name()));
  }
  if (pinned()) return;
  if (access == Access::kWrite && op == "aten::embedding_renorm_") {
    throw base::Error(
        base::ErrorCode::kMisuse,
        fmt::format("an embedding with max_norm changes '{}', which is sharded, in its forward, on "
                    "each rank in another way; leave that parameter alone by a rule with `ignore`, "
                    "or limit the norms after the optimizer step",
                    storage.name()));
  }
  if (access == Access::kWrite) {
    throw base::Error(
        base::ErrorCode::kMisuse,
        fmt::format("{} writes to parameter '{}', which is sharded. An optimizer must be built on "
                    "sharded.parameters(), not on module->parameters(); to edit values, open "
                    "sharded.unsharded(UnshardedMode::kWrite)",
                    op, storage.name()));
  }
  const int unit = storage.index();
  const bool backward = in_backward_();
  const schedule::Phase phase = phase_of_operator(backward);
  // Inside a step even forwards without gradients belong to it: a checkpointed block runs so.
  const bool in_step = backward || at::GradMode::is_enabled() || step_open_;
  if (in_step) uses_.note(unit);
  const Stay stay = units_[static_cast<std::size_t>(unit)].stay;
  if (stay == Stay::kNeverAway) {
    if (!source_->is_current(unit)) source_->gather(unit);
  } else if (stay == Stay::kForGood) {
    touch_kept(unit);
    follower_.on_staying(phase, gathered_to_stay_);
  } else if (in_step) {
    touch_in_step(unit, phase);
  } else {
    touch_without_gradients(unit);
  }
}

void UnitPager::touch_kept(int unit) {
  gathered_to_stay_.clear();
  kept_.note(unit);
  const bool current = is_current(unit);
  if (current && !states_[static_cast<std::size_t>(unit)].arriving) return;
  if (!current) join_batch_to_stay(unit);
  gather_kept_after(unit);
  start_batch();
  arrive(unit);
}

bool UnitPager::is_current(int unit) const {
  return states_[static_cast<std::size_t>(unit)].resident && source_->is_current(unit);
}

// In the order of their first uses before the last update.
void UnitPager::gather_kept_after(int unit) {
  const std::vector<int>& order = kept_.before();
  const auto found = std::find(order.begin(), order.end(), unit);
  if (found == order.end()) return;
  std::size_t ahead = 0;
  for (auto next = found + 1; next != order.end(); ++next) {
    ++ahead;
    if (is_current(*next)) continue;
    const bool joins = fits_batch(*next);
    if (!joins && ahead > depth_) return;
    if (!joins) start_batch();
    join_batch_to_stay(*next);
  }
}

void UnitPager::join_batch_to_stay(int unit) {
  evict(unit);  // it may be there with old values
  gathered_to_stay_.push_back({unit, !batch_.empty()});
  join_batch(unit);
}

bool UnitPager::fits_batch(int unit) const {
  std::int64_t bytes = units_[static_cast<std::size_t>(unit)].bytes;
  for (const int other : batch_) bytes += units_[static_cast<std::size_t>(other)].bytes;
  return !batch_.empty() && bytes <= bucket_bytes_;
}

void UnitPager::touch_in_step(int unit, schedule::Phase phase) {
  if (!inference_.empty() || !expected_.empty()) {
    close_inference();
    held_.clear();
  }
  const schedule::Touch touch{unit, phase, held_with(unit)};
  if (follower_.begins_anew(touch)) {
    evict_step();
    source_->end_step();
  }
  step_open_ = true;
  const schedule::Decision decision = follower_.on_touch(touch);
  for (const int other : decision.evict) evict(other);
  join_batch(unit);
  for (const schedule::Ahead& ahead : decision.gather_ahead) {
    if (!ahead.joins) start_batch();
    join_batch(ahead.unit);
  }
  start_batch();
  arrive(unit);
}

void UnitPager::touch_without_gradients(int unit) {
  held_with(unit);
  if (contains(inference_, unit)) return;
  std::erase_if(inference_, [&](int other) {
    if (contains(held_, other)) return false;
    evict(other);
    return true;
  });
  if (last_ >= 0) next_[static_cast<std::size_t>(last_)] = unit;
  last_ = unit;
  const std::vector<int> coming = foresee(unit);
  for (const int other : expected_) {
    if (other != unit && !contains(coming, other)) evict(other);
  }
  expected_ = coming;
  expected_.push_back(unit);  // until it is there, which may fail
  join_batch(unit);
  for (const int next : coming) {
    if (!fits_batch(next)) start_batch();
    join_batch(next);
  }
  start_batch();
  arrive(unit);
  expected_.pop_back();
  inference_.push_back(unit);
}

// What a pass without gradients will use after `unit`, as far as it fits with what is there.
std::vector<int> UnitPager::foresee(int unit) const {
  std::int64_t bytes = scheduled_bytes(units_[static_cast<std::size_t>(unit)]);
  for (const int other : inference_) bytes += units_[static_cast<std::size_t>(other)].bytes;
  std::vector<int> coming;
  for (int next = next_[static_cast<std::size_t>(unit)]; next >= 0 && coming.size() < depth_;
       next = next_[static_cast<std::size_t>(next)]) {
    bytes += units_[static_cast<std::size_t>(next)].bytes;
    const bool is_there = next == unit || contains(inference_, next) || contains(coming, next);
    if (is_there || (limit_ != 0 && bytes > limit_)) break;
    coming.push_back(next);
  }
  return coming;
}

void UnitPager::close_inference() {
  for (const int unit : inference_) evict(unit);
  for (const int unit : expected_) evict(unit);
  inference_.clear();
  expected_.clear();
  last_ = -1;
}

void UnitPager::end_step() {
  const UseScope use(*this, "the end of a step");
  close_inference();
  evict_step();
  held_.clear();
  together_.clear();
  step_open_ = false;
  uses_.end_step();
}

void UnitPager::evict_step() {
  for (const int unit : follower_.end_step()) evict(unit);
}

void UnitPager::release() {
  const UseScope use(*this, "an update or a release");
  end_step();
  kept_.end_step();
  for (std::size_t unit = 0; unit < units_.size(); ++unit) evict(static_cast<int>(unit));
}

void UnitPager::pin(std::span<std::byte* const> memories) {
  FULLSHARD_CHECK_EQ(memories.size(), units_.size());
  release();
  for (std::size_t i = 0; i < units_.size(); ++i) map(units_[i], memories[i]);
  pinned_memory_.assign(memories.begin(), memories.end());
}

void UnitPager::unpin() {
  pinned_memory_.clear();
  for (const PagedUnit& unit : units_) {
    for (const PagedParameter& parameter : unit.parameters) parameter.storage->unmap();
  }
  for (std::size_t i = 0; i < units_.size(); ++i) {  // which may throw
    if (units_[i].stay == Stay::kNeverAway) map(units_[i], source_->gather(static_cast<int>(i)));
  }
}

void UnitPager::with_resident(std::size_t unit, const std::function<void(std::byte*)>& body) {
  if (pinned()) {
    body(pinned_memory_[unit]);
    return;
  }
  const UseScope use(*this, "reading a whole unit");
  const int number = static_cast<int>(unit);
  const bool was_resident = states_[unit].resident || units_[unit].stay == Stay::kNeverAway;
  if (was_resident) {
    arrive(number);
    body(source_->gather(number));
    return;
  }
  make_room(number);
  try {
    gather(number);
    body(source_->gather(number));
  } catch (...) {
    evict(number);
    throw;
  }
  evict(number);
}

// Where the unit does not fit beside what is there, all of that goes. In the middle of a step the
// step is planned anew.
void UnitPager::make_room(int unit) {
  std::int64_t bytes = scheduled_bytes(units_[static_cast<std::size_t>(unit)]);
  for (std::size_t other = 0; other < units_.size(); ++other) {
    if (states_[other].resident) bytes += scheduled_bytes(units_[other]);
  }
  if (limit_ == 0 || bytes <= limit_) return;
  close_inference();
  evict_step();
  held_.clear();
}

void UnitPager::gather(int unit) {
  join_batch(unit);
  start_batch();
  arrive(unit);
}

// A unit counts as resident from the start of its gather, which takes its memory.
void UnitPager::join_batch(int unit) {
  if (!states_[static_cast<std::size_t>(unit)].resident) batch_.push_back(unit);
}

void UnitPager::start_batch() {
  if (batch_.empty()) return;
  try {
    source_->start(batch_);
  } catch (...) {
    batch_.clear();
    throw;
  }
  ++collectives_;
  for (const int unit : batch_) {
    const auto index = static_cast<std::size_t>(unit);
    UnitResidency& state = states_[index];
    state.resident = true;
    state.arriving = true;
    ++state.gathers;
    live_bytes_ += units_[index].bytes;
  }
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  batch_.clear();
}

void UnitPager::arrive(int unit) {
  const auto index = static_cast<std::size_t>(unit);
  if (!states_[index].arriving) return;
  map(units_[index], source_->gather(unit));
  states_[index].arriving = false;
}

void UnitPager::evict(int unit) {
  const auto index = static_cast<std::size_t>(unit);
  if (!states_[index].resident) return;
  for (const PagedParameter& parameter : units_[index].parameters) parameter.storage->unmap();
  source_->release(unit);
  states_[index].resident = false;
  states_[index].arriving = false;
  live_bytes_ -= units_[index].bytes;
}

void UnitPager::map(const PagedUnit& unit, std::byte* memory) {
  for (const PagedParameter& parameter : unit.parameters) {
    parameter.storage->map(memory + parameter.offset);
  }
}

}  // namespace fullshard::residency
