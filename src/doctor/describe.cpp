#include <fmt/format.h>

#include "fullshard/doctor/trace.h"

namespace fullshard::doctor {
namespace {

std::string elements(const comm::FlightEntry& entry) {
  const std::string values =
      entry.count > 0 ? fmt::format("{} {}", entry.count, entry.dtype) : entry.dtype;
  std::string text = entry.reduction.empty() ? values : entry.reduction + " of " + values;
  if (entry.root >= 0) text += fmt::format(" from rank {}", entry.root);
  return text;
}

}  // namespace

std::string describe(const comm::FlightEntry& entry) {
  std::string text = entry.operation;
  if (!entry.dtype.empty()) {
    text += fmt::format(" ({})", elements(entry));
  } else if (entry.bytes > 0) {
    text += fmt::format(" ({} bytes)", entry.bytes);
  }
  if (!entry.unit.empty()) text += fmt::format(" of unit '{}'", entry.unit);
  if (entry.step >= 0) text += fmt::format(" in step {}", entry.step);
  return text;
}

}  // namespace fullshard::doctor
