#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "fullshard/comm/group.h"

namespace fullshard::comm {

/// Makes the groups of one rank fail together. A rank that learns in one of its groups that another
/// rank is lost, stuck or astray tells all its other groups, whose ranks then throw the same error:
/// without that they would know only that this rank has left. Any thread may call.
class Fate : public std::enable_shared_from_this<Fate> {
 public:
  Fate();

  /// The same group, bound to this fate; so are its subgroups. The first one is the world's.
  std::shared_ptr<Group> bind(const std::shared_ptr<Group>& group);

  /// What is to be thrown for an error of `group`. When a deadline has passed there, those it
  /// waited for may have waited elsewhere; then the error names the rank of the world that does not
  /// answer. May wait for answers for a short time.
  base::Error explain(const base::Error& error, const Group* group);

  /// Why one of the groups can no longer be used, if so, on whichever thread that was found, as
  /// explain() has it.
  std::optional<base::Error> find_failure();

  /// The group is about to end: once this has returned, find_failure() does not look at it.
  void forget(Group& group) noexcept;

  /// Never block, never throw.
  void fail(const base::Error& failure) noexcept;
  void abort(std::string_view reason) noexcept;

 private:
  std::vector<std::shared_ptr<Group>> living() noexcept;
  std::pair<std::optional<base::Error>, const Group*> find_raw_failure();

  int process_;
  std::mutex mutex_;  // guards what follows; taken before any lock of a group
  std::map<Group*, std::weak_ptr<Group>> groups_;
  std::weak_ptr<Group> world_;
  bool is_empty_ = true;
  std::optional<base::Error> failure_;  // for groups that come later
};

}  // namespace fullshard::comm
