#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "fullshard/base/deadline.h"
#include "fullshard/base/dtype.h"

namespace fullshard::comm {

/// How elements of all ranks are combined. Sums run in rank order, fp16 and bf16 in fp32
/// accumulators, so the same inputs give the same bits on every run. kMean divides by the number of
/// ranks.
enum class ReduceOp { kSum, kMean, kMin, kMax };

/// Where a buffer lies: the index of a device, or this for host memory.
inline constexpr int kHostMemory = -1;

/// A contiguous run of elements that a collective reads. The caller keeps it alive and unchanged
/// until the operation's Work has been waited for. Groups of shared memory and Gloo take host
/// memory only; see comm/mixed.h.
struct ConstBuffer {
  const void* data = nullptr;
  std::int64_t count = 0;  ///< elements, not bytes
  base::DType dtype = base::DType::kFloat32;
  int device = kHostMemory;
};

/// A contiguous run of elements that a collective writes; same contract as ConstBuffer.
struct Buffer {
  void* data = nullptr;
  std::int64_t count = 0;
  base::DType dtype = base::DType::kFloat32;
  int device = kHostMemory;

  operator ConstBuffer() const {
    return {data, count, dtype, device};
  }  // NOLINT(google-explicit-constructor)
};

/// What an operation is about, for error messages: which unit of the model and which training step.
struct OpTag {
  std::string unit = {};   ///< user's dotted name, empty when not about a unit
  std::int64_t step = -1;  ///< -1 when not inside a step
};

/// What carries the data between ranks.
enum class BackendChoice {
  kAuto,   ///< kShm when all ranks are on one host, kHosts otherwise
  kShm,    ///< shared memory; an error when the ranks are on several hosts
  kHosts,  ///< shared memory inside each host, Gloo between them
  kGloo,   ///< Gloo over TCP, also between ranks of one host
};

/// Behaviour of a group's waits, and how World::init connects its ranks.
struct CommOptions {
  /// Longest time any blocking call may last. A shorter one finds a stuck rank sooner; a longer one
  /// tolerates slower ranks. Default: 5 minutes.
  base::Duration timeout = std::chrono::minutes(5);
  /// How long a rank's process may show no sign of life before the job ends and names it, whether
  /// or not somebody waits for it: a process that is stopped, a host that is frozen or cannot be
  /// reached. Zero: only `timeout` counts, for instance while a debugger holds a rank; else at
  /// least a second. Every rank shows such signs in a thread of its own, however long it computes.
  /// Rank 0's value holds for the world. Default: 30 seconds.
  base::Duration heartbeat_timeout = std::chrono::seconds(30);
  /// Time spent spinning before a wait sleeps in the kernel. More costs CPU time that another rank
  /// on the same core could use; less costs a few microseconds of latency.
  base::Duration spin = std::chrono::microseconds(20);
  /// Bytes of memory that each rank stages data in during a collective, twice. A larger operation
  /// runs in rounds of this size: more bytes mean fewer meetings, less means that the data stays in
  /// the cache. Over a network it is what a rank receives at a time from each of the others while
  /// it reduces. Rank 0's value holds for the group. A multiple of 64, from 4 KiB. Default: 512
  /// KiB.
  std::size_t staging = std::size_t{512} << 10;
  /// Which backend World::init takes. Default: as fits the ranks' hosts.
  BackendChoice backend = BackendChoice::kAuto;
  /// Network interface for ranks on other hosts, for instance "eth0"; also a list separated by
  /// commas, of which the first that this host has is taken. Empty: GLOO_SOCKET_IFNAME, else the
  /// interface that leads to the job's store. Each rank uses its own value.
  std::string interface = {};
  /// Ranks share memory only with ranks of the same value, even on one host: for trying out a job
  /// of several hosts on one, and for containers that are to be kept apart. Empty: FULLSHARD_HOST.
  /// Each rank uses its own value.
  std::string host = {};
  /// Folder for flight records: when a group of several ranks fails, each rank writes what it did
  /// last to flight_rank<rank>.json there, and its error names the file. Empty: they are not
  /// written, but can be by World::write_flight_record and FlightSignal. Each rank uses its own
  /// value.
  std::string trace_folder = {};
};

}  // namespace fullshard::comm
