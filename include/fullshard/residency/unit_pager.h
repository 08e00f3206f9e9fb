#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "fullshard/residency/paged_storage.h"
#include "fullshard/residency/pager.h"
#include "fullshard/residency/unit_uses.h"
#include "fullshard/schedule/follower.h"

namespace fullshard::residency {

/// Where the whole memory of units comes from. Units are named by their index in the pager.
class UnitSource {
 public:
  virtual ~UnitSource() = default;

  /// Begins to bring units in, all in one collective; gather() of each ends it.
  virtual void start(std::span<const int> units) = 0;

  /// Blocks until every rank's shard is in place and returns the whole unit's memory. Does all of
  /// it where start() was not called.
  virtual std::byte* gather(int unit) = 0;

  /// Whether what gather() returned last is still what it would return.
  virtual bool is_current(int unit) const = 0;

  /// What start() or gather() brought in is not used any more.
  virtual void release(int unit) = 0;

  /// A step has ended that no backward and no update will end.
  virtual void end_step() = 0;
};

/// One parameter's storage and its place in the unit's memory.
struct PagedParameter {
  c10::intrusive_ptr<PagedStorage> storage;
  std::size_t offset = 0;  ///< bytes from the start of the unit's memory
};

/// How long a unit stays once it is gathered.
enum class Stay {
  kBySchedule,  ///< evicted when the schedule says so
  kForGood,     ///< kept until release(); gathered anew when its source is not current
  kNeverAway,   ///< mapped when added, the rank's own memory: never gathered nor evicted
};

/// A set of parameters that are gathered and evicted together.
struct PagedUnit {
  std::string name;
  std::int64_t bytes = 0;
  std::vector<PagedParameter> parameters;
  Stay stay = Stay::kBySchedule;
};

/// What the pager counted for one unit.
struct UnitResidency {
  std::int64_t gathers = 0;
  bool resident = false;
  bool arriving = false;  ///< resident, but its gather was only started
};

/// Keeps the units of one sharded model on one rank: brings a unit in when an operator touches it,
/// and evicts by schedule. Steps that run with gradients are traced and then follow a schedule; in
/// passes without gradients the touched unit is the only resident one, and it stays until the next
/// touch or until release(). There, and of units that are kept for good, what came next the last
/// time is gathered ahead, as many units as options.forward_prefetch says. One thread at a time may
/// use units that are not always there.
class UnitPager final : public Pager {
 public:
  /// `in_backward` says whether the calling thread is inside a backward pass.
  UnitPager(std::vector<PagedUnit> units, std::unique_ptr<UnitSource> source,
            const schedule::ScheduleOptions& options, std::function<bool()> in_backward);
  UnitPager(const UnitPager&) = delete;
  UnitPager& operator=(const UnitPager&) = delete;
  ~UnitPager() override;

  /// Throws base::Error(kMisuse) while another thread is inside an operator on units that come and
  /// go, or brings in or evicts some; so do end_step(), release(), pin() and with_resident().
  bool begin_use(PagedStorage& storage, std::string_view op) override;
  void end_use() noexcept override;

  /// Units that one operator uses stay until a unit that it does not use is touched. Throws
  /// base::Error(kInvalidArgument) where that exceeds the schedule's limit.
  void use_together(std::span<PagedStorage* const> operands) override;
  void on_access(PagedStorage& storage, Access access, std::string_view op) override;
  bool replace(PagedStorage& storage, std::string_view op, std::size_t arguments,
               std::vector<c10::IValue>& stack) override;

  /// Closes a training step: evicts what is left and turns the trace into the next step's schedule.
  void end_step();

  /// Evicts everything.
  void release();

  /// Maps all units to `memories`, one each, until unpin(): for scopes that hold private copies.
  void pin(std::span<std::byte* const> memories);
  void unpin();
  bool pinned() const { return !pinned_memory_.empty(); }

  /// Runs `body` with the unit's memory in place; afterwards the unit is as it was before. Where it
  /// does not fit under the limit beside others, those are evicted.
  void with_resident(std::size_t unit, const std::function<void(std::byte*)>& body);

  std::size_t size() const { return units_.size(); }
  const UnitResidency& residency(std::size_t unit) const { return states_[unit]; }
  /// Gathers of all units, those that the schedule joins counted once.
  std::int64_t collectives() const { return collectives_; }
  std::int64_t live_bytes() const { return live_bytes_; }
  std::int64_t peak_bytes() const { return peak_bytes_; }
  void reset_peak() { peak_bytes_ = live_bytes_; }
  const schedule::Follower& follower() const { return follower_; }
  /// By forwards with gradients and backwards, up to end_step().
  const UnitUses& uses() const { return uses_; }

 private:
  class UseScope;
  void claim(const std::string& name, std::string_view op);
  void touch_kept(int unit);
  void touch_in_step(int unit, schedule::Phase phase);
  void touch_without_gradients(int unit);
  void close_inference();
  bool is_current(int unit) const;
  void gather_kept_after(int unit);
  void join_batch_to_stay(int unit);
  std::vector<int> foresee(int unit) const;
  bool fits_batch(int unit) const;
  void evict_step();
  void make_room(int unit);
  void gather(int unit);
  void join_batch(int unit);
  void start_batch();
  void arrive(int unit);
  void evict(int unit);
  void check_fit(const std::vector<int>& together) const;
  int held_with(int unit);
  void map(const PagedUnit& unit, std::byte* memory);

  std::vector<PagedUnit> units_;
  std::unique_ptr<UnitSource> source_;
  std::vector<UnitResidency> states_;
  std::atomic<std::thread::id> user_ = {};  // the thread inside an operator or a call of this class
  int use_depth_ = 0;                       // how often; only that thread looks
  schedule::Follower follower_;
  UnitUses uses_;
  std::function<bool()> in_backward_;
  // Gathered at the latest touch of a unit that is kept for good.
  std::vector<schedule::Ahead> gathered_to_stay_;
  std::int64_t limit_;                     // of bytes resident by schedule; 0 for none
  std::size_t depth_;                      // units to gather ahead where nothing is scheduled
  std::int64_t bucket_bytes_;              // of units gathered in one collective
  UnitUses kept_;                          // of units kept for good, between releases
  std::vector<int> together_;              // units of the last operator that used several
  std::vector<int> operands_;              // scratch of use_together, for its capacity
  std::vector<int> held_;                  // of together_: touched, and no other unit since
  std::vector<int> batch_;                 // to be gathered in the next collective
  std::vector<int> inference_;             // resident because of a pass without gradients
  std::vector<int> expected_;              // gathered ahead in such a pass, and not used yet
  std::vector<int> next_;                  // by unit: what came after it in one, -1 for nothing
  int last_ = -1;                          // that such a pass used
  bool step_open_ = false;                 // the follower has seen touches since end_step
  std::vector<std::byte*> pinned_memory_;  // by unit; empty when not pinned
  std::int64_t collectives_ = 0;
  std::int64_t live_bytes_ = 0;
  std::int64_t peak_bytes_ = 0;
};

}  // namespace fullshard::residency
