#include "fullshard/layout/unit_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_set>

#include "fullshard/base/check.h"
#include "fullshard/base/error.h"
#include "fullshard/base/text.h"
#include "layout/cut_points.h"

namespace fullshard::layout {
namespace {

using base::Error;
using base::ErrorCode;

template <typename... Args>
[[noreturn]] void refuse(const std::string& unit, fmt::format_string<Args...> format,
                         Args&&... args) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("unit '{}': {}", unit, fmt::format(format, std::forward<Args>(args)...)));
}

void check_weights(const std::string& unit, const LayoutOptions& options) {
  const std::vector<double>& weights = options.weights;
  if (weights.empty()) return;
  if (weights.size() != static_cast<std::size_t>(options.world)) {
    refuse(unit, "{} weights for {} ranks; give one weight a rank, or none for equal shares",
           weights.size(), options.world);
  }
  for (std::size_t rank = 0; rank < weights.size(); ++rank) {
    if (!std::isfinite(weights[rank]) || weights[rank] < 0) {
      refuse(unit, "the weight of rank {} is {}; it must be finite and not negative", rank,
             weights[rank]);
    }
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (!(total > 0) || !std::isfinite(total)) {
    refuse(unit, "the weights add up to {}; the sum must be finite and above 0", total);
  }
}

void check_options(const std::string& unit, const LayoutOptions& options, base::DType dtype) {
  if (options.world < 1) refuse(unit, "world size {}; it must be at least 1", options.world);
  const auto element = static_cast<std::int64_t>(base::size_of(dtype));
  if (options.alignment_bytes < element || options.alignment_bytes % element != 0) {
    refuse(unit, "alignment of {} bytes; it must be a positive multiple of the {} bytes of {}",
           options.alignment_bytes, element, base::to_string(dtype));
  }
  check_weights(unit, options);
}

void check_parameters(const std::string& unit, const std::vector<ParameterSpec>& specs) {
  std::unordered_set<std::string_view> names;
  for (const ParameterSpec& spec : specs) {
    const ParameterSpec& first = specs.front();
    if (spec.dtype != first.dtype) {
      refuse(unit,
             "parameter '{}' is {} and parameter '{}' is {}; a flat buffer has one dtype, so give "
             "each dtype a layout of its own",
             first.name, base::to_string(first.dtype), spec.name, base::to_string(spec.dtype));
    }
    if (!names.insert(spec.name).second) {
      refuse(unit, "parameter '{}' is listed twice; list a shared parameter once", spec.name);
    }
    if ((spec.atom == Atom::kUnit) != (first.atom == Atom::kUnit)) {
      refuse(unit,
             "of parameters '{}' and '{}' one is to stay together with its whole unit and the "
             "other is not; a unit is cut or not cut, so give each kind a layout of its own",
             first.name, spec.name);
    }
    if (spec.group < 1) {
      refuse(unit, "parameter '{}' has a group of {} rows or columns; it must be at least 1",
             spec.name, spec.group);
    }
  }
}

/// The first aligned offset after `numel` elements from `offset` on. Keeps sizes in bytes
/// countable.
std::int64_t advance(const UnitLayout& layout, std::int64_t offset, std::int64_t numel) {
  const std::int64_t quantum = layout.quantum();
  const std::int64_t most = std::numeric_limits<std::int64_t>::max() / layout.element_bytes();
  if (numel > most - offset - quantum) {
    refuse(layout.unit(), "more bytes than 63 bits can count; split the unit");
  }
  return (offset + numel + quantum - 1) / quantum * quantum;
}

}  // namespace

std::size_t cut_dimension(const ParameterSpec& spec) {
  return spec.atom == Atom::kColumn && spec.shape.size() >= 2 ? 1 : 0;
}

std::vector<std::int64_t> PlacedParameter::strides() const {
  std::vector<std::int64_t> strides(spec.shape.size(), 1);
  const std::size_t outermost = cut_dimension(spec);
  std::int64_t next = 1;
  for (std::size_t d = spec.shape.size(); d-- > 0;) {
    if (d == outermost) continue;
    strides[d] = next;
    next *= std::max<std::int64_t>(spec.shape[d], 1);
  }
  if (!strides.empty()) strides[outermost] = next;
  return strides;
}

UnitLayout UnitLayout::make(std::string unit, std::vector<ParameterSpec> parameters,
                            const LayoutOptions& options) {
  UnitLayout layout;
  layout.unit_ = std::move(unit);
  layout.options_ = options;
  if (!parameters.empty()) layout.dtype_ = parameters.front().dtype;
  check_parameters(layout.unit_, parameters);
  check_options(layout.unit_, options, layout.dtype_);
  layout.cut(layout.place(std::move(parameters)));
  return layout;
}

std::int64_t UnitLayout::place(std::vector<ParameterSpec> specs) {
  std::int64_t offset = 0;
  for (ParameterSpec& spec : specs) {
    const std::int64_t count = numel(spec.name, spec.shape);
    parameters_.push_back({std::move(spec), offset, count});
    offset = advance(*this, offset, count);
    payload_ += count;
  }
  return offset;
}

void UnitLayout::cut(std::int64_t flat_size) {
  const std::vector<double> equal(static_cast<std::size_t>(world()), 1.0);
  const std::vector<double>& weights = options_.weights.empty() ? equal : options_.weights;
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double before = 0;
  cuts_.push_back(0);
  for (std::size_t rank = 0; rank + 1 < weights.size(); ++rank) {
    before += weights[rank];
    const double wanted = static_cast<double>(flat_size) * before / total;
    if (is_whole()) {
      cuts_.push_back(2 * wanted < static_cast<double>(flat_size) ? 0 : flat_size);
    } else {
      cuts_.push_back(nearest_cut(parameters_, flat_size, quantum(), wanted));
    }
  }
  cuts_.push_back(flat_size);
}

bool UnitLayout::is_whole() const {
  return !parameters_.empty() && parameters_.front().spec.atom == Atom::kUnit;
}

std::size_t UnitLayout::index_of(std::string_view name) const {
  const auto found = std::find_if(parameters_.begin(), parameters_.end(),
                                  [&](const auto& p) { return p.spec.name == name; });
  if (found == parameters_.end()) {
    std::vector<std::string> names;
    for (const PlacedParameter& p : parameters_) names.push_back(p.spec.name);
    const std::string nearest = base::nearest_name(name, names);
    refuse(unit_, "no parameter '{}'{}", name,
           nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest));
  }
  return static_cast<std::size_t>(found - parameters_.begin());
}

Range UnitLayout::slice(int rank) const {
  FULLSHARD_CHECK_LE(0, rank);
  FULLSHARD_CHECK_LT(rank, world());
  const auto index = static_cast<std::size_t>(rank);
  return {cuts_[index], cuts_[index + 1]};
}

std::int64_t UnitLayout::max_slice_size() const {
  std::int64_t largest = 0;
  for (int rank = 0; rank < world(); ++rank) largest = std::max(largest, slice(rank).size());
  return largest;
}

Range UnitLayout::shard(std::size_t parameter, int rank) const {
  const PlacedParameter& p = parameters_.at(parameter);
  const Range owned = intersect(slice(rank), p.flat());
  if (owned.empty()) return {};
  return {owned.begin - p.offset, owned.end - p.offset};
}

int UnitLayout::owner(std::size_t parameter, std::int64_t element) const {
  const PlacedParameter& p = parameters_.at(parameter);
  FULLSHARD_CHECK_LE(0, element);
  FULLSHARD_CHECK_LT(element, p.numel);
  // The last rank whose slice starts at or before the element: empty slices before it share its
  // cut.
  const auto after = std::upper_bound(cuts_.begin(), cuts_.end(), p.offset + element);
  return static_cast<int>(after - cuts_.begin()) - 1;
}

}  // namespace fullshard::layout
