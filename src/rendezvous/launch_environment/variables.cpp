#include "rendezvous/launch_environment/variables.h"

#include <fmt/format.h>

#include <charconv>
#include <climits>
#include <cstdint>

#include "fullshard/base/error.h"

namespace fullshard::rendezvous {

FoundText Variables::text(const char* name) const {
  const char* value = lookup_(name);
  if (value == nullptr) return std::nullopt;
  return Found<std::string>{value, name};
}

FoundText Variables::first_text(std::initializer_list<const char*> names) const {
  for (const char* name : names) {
    if (auto found = text(name)) return found;
  }
  return std::nullopt;
}

FoundInt Variables::number(const char* name, int least, int most, std::string_view right) const {
  const FoundText found = text(name);
  if (!found) return std::nullopt;
  const std::string& value = found->value;
  int number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < least ||
      number > most) {
    throw base::Error(
        base::ErrorCode::kConfiguration,
        fmt::format("environment variable {} is '{}'; it should be {}", name, value, right));
  }
  return Found<int>{number, name};
}

FoundInt Variables::rank(const char* name) const {
  return number(name, 0, INT_MAX, "a process's number, from 0 up");
}

FoundInt Variables::size(const char* name) const {
  return number(name, 1, INT_MAX, "a number of processes, from 1 up");
}

int port_of_job(std::string_view identity) {
  constexpr std::uint32_t kLowest = 20'000;
  constexpr std::uint32_t kCount = 12'000;
  std::uint32_t hash = 2'166'136'261U;  // FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv
  for (const char letter : identity) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 16'777'619U;
  }
  return static_cast<int>(kLowest + hash % kCount);
}

}  // namespace fullshard::rendezvous
