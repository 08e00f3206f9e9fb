#include "rendezvous/launch_environment/slurm.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <climits>

#include "fullshard/base/error.h"

namespace fullshard::rendezvous {
namespace {

constexpr std::size_t kMostHosts = 1'000'000;  // a longer list is a slip of the pen

class ListReader {
 public:
  ListReader(std::string_view list, std::string_view variable) : list_(list), variable_(variable) {}

  std::vector<std::string> hosts() {
    std::vector<std::string> all;
    do {
      for (std::string& name : names()) all.push_back(std::move(name));
    } while (take(','));
    if (at_ != list_.size()) fail("expected a comma or the end");
    return all;
  }

 private:
  // Up to the next comma outside brackets.
  std::vector<std::string> names() {
    std::vector<std::string> found{""};
    const std::size_t begin = at_;
    while (at_ < list_.size() && list_[at_] != ',') {
      if (take('[')) {
        found = each_with(found, numbers());
      } else {
        const std::size_t end = std::min(list_.find_first_of(",[]", at_), list_.size());
        if (end == at_) fail("a bracket that was not opened");
        for (std::string& name : found) name += list_.substr(at_, end - at_);
        at_ = end;
      }
    }
    if (at_ == begin) fail("expected the name of a host");
    return found;
  }

  std::vector<std::string> each_with(const std::vector<std::string>& heads,
                                     const std::vector<std::string>& tails) {
    if (heads.size() * tails.size() > kMostHosts) fail("too many hosts");
    std::vector<std::string> joined;
    for (const std::string& head : heads) {
      for (const std::string& tail : tails) joined.push_back(head + tail);
    }
    return joined;
  }

  // "01-03,7]" after the opening bracket. Leading zeros are part of the names.
  std::vector<std::string> numbers() {
    std::vector<std::string> found;
    do {
      const std::string_view first = digits();
      const std::string_view last = take('-') ? digits() : first;
      const std::int64_t from = value(first);
      const std::int64_t to = value(last);
      if (to < from || to - from >= static_cast<std::int64_t>(kMostHosts)) fail("a range ends");
      for (std::int64_t number = from; number <= to; ++number) {
        found.push_back(fmt::format("{:0{}}", number, first.size()));
      }
    } while (take(','));
    if (!take(']')) fail("expected a number, a comma or a closing bracket");
    return found;
  }

  std::string_view digits() {
    const std::size_t end = std::min(list_.find_first_not_of("0123456789", at_), list_.size());
    if (end == at_ || end - at_ > 18) fail("expected a number");
    const std::string_view found = list_.substr(at_, end - at_);
    at_ = end;
    return found;
  }

  static std::int64_t value(std::string_view digits) {
    std::int64_t number = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), number);
    return number;
  }

  bool take(char letter) {
    if (at_ == list_.size() || list_[at_] != letter) return false;
    ++at_;
    return true;
  }

  [[noreturn]] void fail(std::string_view what) const {
    throw base::Error(
        base::ErrorCode::kConfiguration,
        fmt::format("environment variable {} is '{}'; it should be a list of hosts such as "
                    "node[01-03,7],other ({} at '{}')",
                    variable_, list_, what, list_.substr(std::min(at_, list_.size()))));
  }

  std::string_view list_;
  std::string_view variable_;
  std::size_t at_ = 0;
};

// One item of the short form, "2(x3)", appended; false when it is none.
bool append_task_counts(std::string_view item, std::vector<int>& counts) {
  int tasks = 0;
  int nodes = 1;
  const char* end = item.data() + item.size();
  auto [at, error] = std::from_chars(item.data(), end, tasks);
  if (error != std::errc() || tasks < 1) return false;
  if (at != end) {
    if (!std::string_view(at, end).starts_with("(x")) return false;
    const auto [close, bad] = std::from_chars(at + 2, end, nodes);
    if (bad != std::errc() || std::string_view(close, end) != ")") return false;
    if (nodes < 1 || static_cast<std::size_t>(nodes) > kMostHosts) return false;
  }
  counts.insert(counts.end(), static_cast<std::size_t>(nodes), tasks);
  return true;
}

// In a batch script, Slurm describes the allocation; only srun starts tasks, and numbers its steps.
bool is_outside_srun(const Variables& variables) {
  return variables.text("SLURM_JOB_ID") && !variables.text("SLURM_STEP_ID") &&
         !variables.text("SLURM_STEPID");
}

// Tasks on this node. Without Slurm's own count they are taken as spread evenly.
FoundInt tasks_on_this_node(const Variables& variables, int world_size, std::size_t nodes) {
  const FoundText counts =
      variables.first_text({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  const FoundInt node = variables.rank("SLURM_NODEID");
  if (counts && node) {
    const std::vector<int> by_node = expand_task_counts(counts->value, counts->from);
    const auto index = static_cast<std::size_t>(node->value);
    if (index < by_node.size()) return Found<int>{by_node[index], counts->from};
  }
  const auto even = (static_cast<std::size_t>(world_size) + nodes - 1) / nodes;
  return Found<int>{static_cast<int>(even), nodes == 1 ? "the only node" : "an even spread"};
}

Found<int> port_of(const Variables& variables) {
  const FoundText job = variables.first_text({"SLURM_JOB_ID", "SLURM_JOBID"});
  if (!job) return {kUsualPort, "default"};
  const FoundText step = variables.first_text({"SLURM_STEP_ID", "SLURM_STEPID"});
  return {port_of_job(job->value + "." + (step ? step->value : "")), job->from};
}

}  // namespace

std::vector<std::string> expand_node_list(std::string_view list, std::string_view variable) {
  return ListReader(list, variable).hosts();
}

std::vector<int> expand_task_counts(std::string_view counts, std::string_view variable) {
  std::vector<int> by_node;
  for (std::size_t begin = 0; begin <= counts.size();) {
    const std::size_t end = std::min(counts.find(',', begin), counts.size());
    if (!append_task_counts(counts.substr(begin, end - begin), by_node)) {
      throw base::Error(base::ErrorCode::kConfiguration,
                        fmt::format("environment variable {} is '{}'; it should be tasks by node "
                                    "such as 2(x3),1",
                                    variable, counts));
    }
    begin = end + 1;
  }
  return by_node;
}

Findings from_slurm(const Variables& variables) {
  Findings found;
  if (is_outside_srun(variables)) return found;
  const FoundInt rank = variables.rank("SLURM_PROCID");
  FoundInt size = variables.size("SLURM_STEP_NUM_TASKS");
  if (!size) size = variables.size("SLURM_NTASKS");
  if (!rank || !size || size->value == 1) return found;
  found.rank = rank;
  found.world_size = size;
  const FoundText list =
      variables.first_text({"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"});
  std::size_t nodes = 1;
  if (list) {
    const std::vector<std::string> hosts = expand_node_list(list->value, list->from);
    nodes = hosts.size();
    // A host's own name need not resolve on the host itself.
    found.master_addr = {nodes == 1 ? "127.0.0.1" : hosts.front(), list->from};
  }
  found.local_rank = variables.rank("SLURM_LOCALID");
  if (found.local_rank && (list || variables.text("SLURM_NODEID"))) {
    found.local_world_size = tasks_on_this_node(variables, size->value, nodes);
  }
  found.master_port = port_of(variables);
  return found;
}

}  // namespace fullshard::rendezvous
