#include "comm/c10d/device_stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <thread>

namespace fullshard::comm::c10d {
namespace {

// A wait for the device costs this much more at most; less would keep a core busy.
constexpr std::chrono::microseconds kLook{20};

}  // namespace

DeviceStream::DeviceStream(c10::Device device) : device_(device) {
  if (device_.is_cpu()) return;
  stream_ = c10::impl::VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_);
}

DeviceStream::Mark DeviceStream::mark() const {
  if (!stream_) return nullptr;
  auto event = std::make_shared<c10::Event>(device_.type());
  event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  return event;
}

DeviceStream::Scope::Scope(const DeviceStream& stream, const Mark& mark) : guard_(stream.stream_) {
  if (mark != nullptr) mark->block(*stream.stream_);
}

bool DeviceStream::finish(base::Deadline deadline) const {
  if (!stream_) return true;
  c10::Event done(device_.type());
  done.record(*stream_);
  while (!done.query()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(kLook);
  }
  return true;
}

}  // namespace fullshard::comm::c10d
