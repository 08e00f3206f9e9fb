#include "comm/host_map.h"

#include <algorithm>
#include <map>

namespace fullshard::comm {

HostMap::HostMap(const std::vector<int>& host_of) {
  std::map<int, int> numbers;
  for (const int given : host_of) {
    const int rank = static_cast<int>(host_of_.size());
    const int host = numbers.emplace(given, static_cast<int>(numbers.size())).first->second;
    if (index(host) == ranks_.size()) ranks_.emplace_back();
    if (host_of_.empty() || host_of_.back() != host) runs_.push_back({host, rank, rank});
    ++runs_.back().end;
    host_of_.push_back(host);
    run_of_.push_back(static_cast<int>(runs_.size()) - 1);
    local_.push_back(static_cast<int>(ranks_[index(host)].size()));
    ranks_[index(host)].push_back(rank);
  }
}

int HostMap::carrier(int rank, int host) const {
  if (host_of(rank) == host) return rank;
  const int run_number = run_of_[index(rank)];
  const Run& run = runs_[index(run_number)];
  const std::vector<int>& carriers = ranks(host);
  const int length = run.end - run.first;
  const int count = static_cast<int>(carriers.size());
  const int at = rank - run.first;
  const int local = length >= count ? at * count / length : at + run_number % (count - length + 1);
  return carriers[index(local)];
}

std::vector<int> HostMap::carried(int rank) const {
  std::vector<int> found;
  for (int other = 0; other < size(); ++other) {
    if (carrier(other, host_of(rank)) == rank) found.push_back(other);
  }
  return found;
}

HostMap::Span HostMap::carried(std::size_t run, int rank) const {
  const Run& of = runs_[run];
  Span span{of.first, of.first};
  for (int other = of.first; other < of.end; ++other) {
    if (carrier(other, host_of(rank)) != rank) continue;
    if (span.first == span.end) span.first = other;
    span.end = other + 1;
  }
  return span;
}

}  // namespace fullshard::comm
