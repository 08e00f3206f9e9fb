#include "comm/device/host_plan.h"

#include <algorithm>
#include <utility>

#include "comm/device/pieces.h"

namespace fullshard::comm::device {
namespace {

using shared::Parts;

std::size_t index(int number) { return static_cast<std::size_t>(number); }

/// The group as one rank sees it, and the parts cut into slices of `step` elements.
struct View {
  View(const Parts& cut, const HostMap& map, int rank, std::int64_t slice_elements)
      : parts(cut),
        hosts(map),
        self(rank),
        here(map.host_of(rank)),
        mates(map.ranks(here)),
        step(slice_elements),
        slices((cut.longest + step - 1) / step),
        slot(std::min(step, cut.longest)) {
    for (const int mate : mates) carried.push_back(map.carried(mate));
  }

  /// Elements of slice `number` of a rank's part: none before the first and after the last.
  std::int64_t count(int rank, std::int64_t number) const {
    return number < 0 ? 0 : slice(parts.counts[index(rank)], number * step, step);
  }
  std::int64_t offset(int rank, std::int64_t number) const {
    return parts.offsets[index(rank)] + number * step;
  }
  Piece piece(int peer, int of, std::int64_t number) const {
    return {peer, offset(of, number), count(of, number)};
  }
  int size() const { return static_cast<int>(parts.counts.size()); }

  /// What this rank carries.
  const std::vector<int>& own_carried() const { return carried[index(hosts.local(self))]; }

  const Parts& parts;
  const HostMap& hosts;
  int self;
  int here;
  const std::vector<int>& mates;          // of this host, itself among them
  std::vector<std::vector<int>> carried;  // by mate, whose parts it carries
  std::int64_t step;
  std::int64_t slices;
  std::int64_t slot;  // the longest slice that there is
};

// Slice `number` of every part goes to the hosts, and to the owner's host-mates.
void spread(const View& view, std::int64_t number, Exchange& exchange) {
  for (int host = 0; host < view.hosts.hosts(); ++host) {
    if (host == view.here) continue;
    add(exchange.sends, view.piece(view.hosts.carrier(view.self, host), view.self, number));
  }
  for (const int mate : view.mates) {
    if (mate == view.self) continue;
    add(exchange.sends, view.piece(mate, view.self, number));
    add(exchange.recvs, view.piece(mate, mate, number));
  }
  for (int owner = 0; owner < view.size(); ++owner) {
    if (view.hosts.host_of(owner) == view.here) continue;
    if (view.hosts.carrier(owner, view.here) != view.self) continue;
    add(exchange.recvs, view.piece(owner, owner, number));
  }
}

// What the ranks of this host carry of others, slice `number`, they show each other.
void pass_on(const View& view, std::int64_t number, Exchange& exchange) {
  for (int owner = 0; owner < view.size(); ++owner) {
    if (view.hosts.host_of(owner) == view.here) continue;
    const int carrier = view.hosts.carrier(owner, view.here);
    if (carrier != view.self) {
      add(exchange.recvs, view.piece(carrier, owner, number));
      continue;
    }
    for (const int mate : view.mates) {
      if (mate != view.self) add(exchange.sends, view.piece(mate, owner, number));
    }
  }
}

/// Where the slices of a reduce_scatter lie in scratch: two halves of each kind, for slices that
/// follow each other.
class ReduceSlots {
 public:
  explicit ReduceSlots(const View& view) : view_(view), carried_(view.own_carried()) {}

  const std::vector<int>& carried() const { return carried_; }
  std::int64_t addends() const { return 2 * addends_of_half(); }
  std::int64_t sums() const { return 2 * sums_of_half(); }
  std::int64_t host_sums() const { return 2 * host_sums_of_half(); }

  std::int64_t addend(std::size_t nth_carried, int mate, std::int64_t number) const {
    const int others_before =
        view_.hosts.local(mate) - (view_.hosts.local(mate) > view_.hosts.local(view_.self) ? 1 : 0);
    const auto others = static_cast<std::int64_t>(view_.mates.size()) - 1;
    return number % 2 * addends_of_half() +
           (static_cast<std::int64_t>(nth_carried) * others + others_before) * view_.slot;
  }
  std::int64_t sum(std::size_t nth_carried, std::int64_t number) const {
    return number % 2 * sums_of_half() + static_cast<std::int64_t>(nth_carried) * view_.slot;
  }
  std::int64_t host_sum(int host, std::int64_t number) const {
    return number % 2 * host_sums_of_half() + (host - (host > view_.here ? 1 : 0)) * view_.slot;
  }
  std::int64_t own_sum(std::int64_t number) const {
    const auto own = std::find(carried_.begin(), carried_.end(), view_.self);
    return sum(static_cast<std::size_t>(own - carried_.begin()), number);
  }

 private:
  std::int64_t addends_of_half() const {
    return sums_of_half() * (static_cast<std::int64_t>(view_.mates.size()) - 1);
  }
  std::int64_t sums_of_half() const {
    return static_cast<std::int64_t>(carried_.size()) * view_.slot;
  }
  std::int64_t host_sums_of_half() const { return (view_.hosts.hosts() - 1) * view_.slot; }

  const View& view_;
  const std::vector<int>& carried_;
};

// Every rank of the host is brought slice `number` of what it carries.
Exchange bring_together(const View& view, const ReduceSlots& slots, std::int64_t number) {
  Exchange exchange;
  for (const int mate : view.mates) {
    if (mate == view.self) continue;
    for (const int owner : view.carried[index(view.hosts.local(mate))]) {
      add(exchange.sends, view.piece(mate, owner, number));
    }
    for (std::size_t i = 0; i < slots.carried().size(); ++i) {
      add(exchange.recvs,
          {mate, slots.addend(i, mate, number), view.count(slots.carried()[i], number)});
    }
  }
  return exchange;
}

// The sums of slice `number` go to the owners of the parts.
Exchange send_sums(const View& view, const ReduceSlots& slots, std::int64_t number) {
  Exchange exchange;
  for (std::size_t i = 0; i < slots.carried().size(); ++i) {
    const int owner = slots.carried()[i];
    if (owner == view.self) continue;
    add(exchange.sends, {owner, slots.sum(i, number), view.count(owner, number)});
  }
  for (int host = 0; host < view.hosts.hosts(); ++host) {
    if (host == view.here) continue;
    add(exchange.recvs, {view.hosts.carrier(view.self, host), slots.host_sum(host, number),
                         view.count(view.self, number)});
  }
  return exchange;
}

std::vector<Sum> add_up_here(const View& view, const ReduceSlots& slots, std::int64_t number) {
  std::vector<Sum> sums;
  for (std::size_t i = 0; i < slots.carried().size(); ++i) {
    const int owner = slots.carried()[i];
    Sum sum{slots.sum(i, number), view.count(owner, number), {}};
    if (sum.count == 0) continue;
    for (const int mate : view.mates) {
      sum.addends.push_back(mate == view.self ? view.offset(owner, number)
                                              : slots.addend(i, mate, number));
    }
    sums.push_back(std::move(sum));
  }
  return sums;
}

Sum add_up_hosts(const View& view, const ReduceSlots& slots, std::int64_t number) {
  Sum sum{number * view.step, view.count(view.self, number), {}};
  if (sum.count == 0) return {};
  for (int host = 0; host < view.hosts.hosts(); ++host) {
    sum.addends.push_back(host == view.here ? slots.own_sum(number) : slots.host_sum(host, number));
  }
  return sum;
}

}  // namespace

std::int64_t choose_slice(std::int64_t longest, std::size_t element_bytes, std::size_t chunk) {
  constexpr std::int64_t kSlices = 4;
  constexpr std::size_t kShortest = std::size_t{1} << 20;
  const auto elements = [&](std::size_t bytes) {
    return static_cast<std::int64_t>(std::max<std::size_t>(bytes / element_bytes, 1));
  };
  const std::int64_t wanted = std::max((longest + kSlices - 1) / kSlices, elements(kShortest));
  return std::min(wanted, elements(chunk));
}

std::vector<Exchange> plan_all_gather(const Parts& parts, const HostMap& hosts, int rank,
                                      std::int64_t step) {
  const View view(parts, hosts, rank, step);
  std::vector<Exchange> exchanges;
  if (view.slices == 0) return exchanges;
  for (std::int64_t stage = 0; stage <= view.slices; ++stage) {
    Exchange exchange;
    spread(view, stage, exchange);
    pass_on(view, stage - 1, exchange);
    exchanges.push_back(std::move(exchange));
  }
  return exchanges;
}

// Slice s is brought together in stage s, added up while that of stage s + 1 arrives, and crosses
// in stage s + 2.
HostReducePlan plan_reduce_scatter(const Parts& parts, const HostMap& hosts, int rank,
                                   std::int64_t step) {
  constexpr std::int64_t kLag = 2;
  const View view(parts, hosts, rank, step);
  const ReduceSlots slots(view);
  HostReducePlan plan{slots.addends(), slots.sums(), slots.host_sums(), {}};
  if (view.slices == 0) return plan;
  for (std::int64_t stage = 0; stage < view.slices + kLag; ++stage) {
    plan.stages.push_back({bring_together(view, slots, stage), send_sums(view, slots, stage - kLag),
                           add_up_hosts(view, slots, stage - kLag),
                           add_up_here(view, slots, stage)});
  }
  return plan;
}

}  // namespace fullshard::comm::device
