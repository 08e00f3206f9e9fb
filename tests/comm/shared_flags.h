#pragma once

#include <sys/mman.h>

#include <atomic>
#include <new>
#include <stdexcept>
#include <thread>

namespace fullshard::comm::testing {

/// Numbers that the ranks of a test tell each other beside the backend under test, zero at first.
/// Made before the ranks start; works for threads and for forked processes.
class SharedFlags {
 public:
  explicit SharedFlags(int count) : count_(count) {
    void* memory =
        mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    flags_ = static_cast<std::atomic<int>*>(memory);
  }
  ~SharedFlags() { munmap(flags_, bytes()); }
  SharedFlags(const SharedFlags&) = delete;
  SharedFlags& operator=(const SharedFlags&) = delete;

  void set(int flag, int value) const { flags_[flag].store(value); }
  int get(int flag) const { return flags_[flag].load(); }

  /// Sets the flag of a rank's number and waits for those of all `ranks`. What one of them does
  /// then, ends nothing that another is still on its way out of.
  void meet(int rank, int ranks) const {
    set(rank, 1);
    for (int other = 0; other < ranks; ++other) await(other);
  }

  /// Waits until a flag is set to something.
  void await(int flag) const {
    while (get(flag) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(count_) * sizeof(std::atomic<int>); }

  int count_;
  std::atomic<int>* flags_ = nullptr;
};

}  // namespace fullshard::comm::testing
