#include "comm/device/placement.h"

#include <fmt/format.h>

#include <cstdlib>

#include "fullshard/base/error.h"

namespace fullshard::comm::device {

int choose_device(LocalPlace place, int devices, bool restricted) {
  if (devices == 1 && restricted) return 0;
  if (place.size <= devices) return place.rank;
  throw base::Error(
      base::ErrorCode::kConfiguration,
      fmt::format("this is rank {} of {} on its host, and {} GPU{} visible to it; start at most "
                  "one rank a GPU on each host, or let the launcher give each process its own in "
                  "CUDA_VISIBLE_DEVICES",
                  place.rank, place.size, devices, devices == 1 ? " is" : "s are"));
}

bool devices_are_restricted() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible != nullptr && *visible != '\0';
}

}  // namespace fullshard::comm::device
