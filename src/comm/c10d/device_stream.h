#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <memory>
#include <optional>

#include "fullshard/base/deadline.h"

namespace fullshard::comm::c10d {

/// The order between a group's operations and what its callers give the device to do. Streams and
/// events are reached through c10's guards, so that no header of a device's maker is needed. For
/// the CPU, where operations end inside the call, there is nothing to order.
class DeviceStream {
 public:
  /// Takes a stream of the device's pool.
  explicit DeviceStream(c10::Device device);

  c10::Device device() const { return device_; }

  /// A moment in the order of a device: what it was given before. Empty for the CPU.
  using Mark = std::shared_ptr<const c10::Event>;

  /// After everything that the calling thread has given to its current stream.
  Mark mark() const;

  /// While it lives the group's stream is the current one of this thread; it goes on after `mark`.
  class Scope {
   public:
    Scope(const DeviceStream& stream, const Mark& mark);

   private:
    c10::OptionalStreamGuard guard_;
  };

  /// Waits until the device has done what the group's stream was given; false when it has not by
  /// the deadline. Throws what c10 throws when the device reports an error.
  bool finish(base::Deadline deadline) const;

 private:
  c10::Device device_;
  std::optional<c10::Stream> stream_;
};

}  // namespace fullshard::comm::c10d
