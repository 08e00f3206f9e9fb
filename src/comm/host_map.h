#pragma once

#include <cstddef>
#include <vector>

namespace fullshard::comm {

/// Which rank of a group is on which host, and who carries what between them; the same on every
/// rank. Hosts are numbered from 0 in the order of their first ranks.
class HostMap {
 public:
  /// Consecutive ranks of one host.
  struct Run {
    int host;
    int first;
    int end;
  };
  /// Ranks [first, end).
  struct Span {
    int first;
    int end;
  };

  /// `host_of[r]` is any number of the host of rank r.
  explicit HostMap(const std::vector<int>& host_of);

  int size() const { return static_cast<int>(host_of_.size()); }
  int hosts() const { return static_cast<int>(ranks_.size()); }
  int host_of(int rank) const { return host_of_[index(rank)]; }
  const std::vector<int>& ranks(int host) const { return ranks_[index(host)]; }
  const std::vector<Run>& runs() const { return runs_; }

  /// Position of a rank among the ranks of its host.
  int local(int rank) const { return local_[index(rank)]; }

  /// Whether ranks share a host.
  bool any_together() const { return ranks_.size() < host_of_.size(); }

  /// The rank on `host` that holds, for its host-mates, what is of `rank`: rank itself on its own
  /// host. The ranks of a host share the ranks of a run as evenly as they can, in order.
  int carrier(int rank, int host) const;

  /// The ranks whose parts `rank` carries on its own host, itself among them, in order.
  std::vector<int> carried(int rank) const;

  /// The ranks of run `run` whose part `rank` carries on its own host.
  Span carried(std::size_t run, int rank) const;

 private:
  static std::size_t index(int number) { return static_cast<std::size_t>(number); }

  std::vector<int> host_of_;
  std::vector<int> local_;
  std::vector<int> run_of_;
  std::vector<std::vector<int>> ranks_;
  std::vector<Run> runs_;
};

}  // namespace fullshard::comm
