#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "fullshard/rendezvous/store.h"

namespace fullshard::rendezvous {

/// Reaches what stands behind a Store, for code that hands it to c10d.
struct StoreAccess {
  /// The same store as c10d knows it, with the same prefix before every key. What c10d throws is
  /// not translated.
  static c10::intrusive_ptr<c10d::Store> c10d_store(const Store& store);
};

}  // namespace fullshard::rendezvous
