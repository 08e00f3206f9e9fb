#pragma once

#include <string>

#include "fullshard/base/deadline.h"

namespace fullshard::comm {

/// Where ranks leave each other short texts before they can communicate; a key is set once. What a
/// backend needs of a key-value store, so that no backend depends on a particular one.
class Exchange {
 public:
  virtual ~Exchange() = default;

  /// Publishes `value` under `key`.
  virtual void set(const std::string& key, const std::string& value) = 0;

  /// The value of `key`; waits until it is set. Throws base::Error kTimeout after `timeout`.
  virtual std::string get(const std::string& key, base::Duration timeout) = 0;
};

}  // namespace fullshard::comm
