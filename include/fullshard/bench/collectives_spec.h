#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fullshard::bench {

/// One run over one backend, with every operation at every size.
struct CollectivesSpec {
  int ranks = 2;
  std::string backend = "shm";                                               ///< or "gloo"
  std::vector<std::string> operations = {};                                  ///< none: all
  std::vector<std::int64_t> sizes = {64 << 10, 1 << 20, 8 << 20, 64 << 20};  ///< bytes of the whole
};

/// What can be measured. `copy` is a memory copy on all ranks at once, to compare with;
/// `reduce_in_place` and `gather_in_place` are what sharded training does with gradients and
/// parameters where ranks share memory: they lie where all ranks see them, and gathering is to wait
/// until they are complete, whatever their size.
std::vector<std::string> collective_operations();

/// Whether a backend has the operation, and whether a size means anything to it.
bool has_operation(std::string_view backend, std::string_view operation);
bool has_size(std::string_view operation);

/// Bytes that one rank has to read and write at least, where ranks read each other's memory: of a
/// copy and of reductions; 0 for others. `bytes` is the whole.
std::int64_t least_moved_bytes(std::string_view operation, std::int64_t bytes, int ranks);

/// Throws base::Error(kUsage) naming the field that cannot be used and what would be right.
void validate(const CollectivesSpec& spec);

std::string to_json(const CollectivesSpec& spec);

/// Reads what to_json wrote. Throws base::Error(kConfiguration).
CollectivesSpec parse_collectives_spec(std::string_view json);

/// How long one operation took, until the slowest rank had ended it.
struct CollectiveTime {
  std::string operation;
  std::int64_t bytes = 0;  ///< of the whole; 0 where a size means nothing
  double seconds = 0;      ///< the median over repetitions
};

/// One line, without the line's end.
std::string to_json(const std::vector<CollectiveTime>& times);

/// The times on the last line of `output` that holds some. Throws base::Error(kSystem) that names
/// `source`.
std::vector<CollectiveTime> parse_collective_times(std::string_view output,
                                                   std::string_view source);

}  // namespace fullshard::bench
