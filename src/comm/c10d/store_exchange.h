#pragma once

#include <string>
#include <utility>

#include "fullshard/comm/exchange.h"
#include "fullshard/rendezvous/store.h"

namespace fullshard::comm::c10d {

/// The keys of a store.
class StoreExchange final : public Exchange {
 public:
  explicit StoreExchange(rendezvous::Store store) : store_(std::move(store)) {}
  void set(const std::string& key, const std::string& value) override { store_.set(key, value); }
  std::string get(const std::string& key, base::Duration timeout) override {
    return store_.get(key, timeout);
  }

 private:
  rendezvous::Store store_;
};

}  // namespace fullshard::comm::c10d
