#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "fullshard/base/deadline.h"

namespace fullshard::rendezvous {

/// Where a TCP store listens and who runs it.
struct TcpStoreOptions {
  std::string host = "127.0.0.1";
  int port = 0;        ///< of the server; 0 lets the server choose, see Store::port()
  bool serve = false;  ///< run the server in this process, as well as a client of it
  /// A socket that listens on `port` already, for the server to use instead of binding the port
  /// itself. The server works on a duplicate; this one stays open and keeps the port for its owner.
  std::optional<int> listen_fd;
  /// Longest time to reach the server; also for every later request that names no time of its own.
  base::Duration timeout = std::chrono::minutes(5);
};

/// A key-value store that ranks meet at before they can communicate. Value type; copies refer to
/// the same store, and any thread may use it. With the last copy of a serving store its server
/// ends.
///
/// Errors are base::Error and name the store ("the store at host:port") and the key: kTimeout when
/// a wait passes its time, kPeerLost when the server cannot be reached or is gone, kSystem when it
/// cannot be started, for instance because the port is taken.
class Store {
 public:
  struct State;  ///< what stands behind it; opaque
  /// A client of the server at host:port, or the server itself.
  static Store over_tcp(const TcpStoreOptions& options);

  /// A file that all ranks see; `ranks` of them share it, and the last one removes it.
  static Store over_file(const std::string& path, int ranks);

  /// Memory of this process.
  static Store in_memory();

  /// The same store with `prefix` and a slash before every key.
  Store with_prefix(const std::string& prefix) const;

  void set(const std::string& key, const std::string& value) const;

  /// The value of `key`, waiting until it is set. Any timeout will do, none and endless included.
  std::string get(const std::string& key, base::Duration timeout) const;

  /// Whether `key` is set now.
  bool has(const std::string& key) const;

  /// Adds `amount` to the number under `key`, which starts at 0, and returns the sum. Atomic.
  std::int64_t add(const std::string& key, std::int64_t amount) const;

  /// Returns when `key` is set.
  void wait(const std::string& key, base::Duration timeout) const;

  /// Port of the server, 0 when the store has none.
  int port() const;

  /// Host of the server as it was named, empty when the store has none.
  const std::string& host() const;

 private:
  friend struct StoreAccess;
  explicit Store(std::shared_ptr<State> state);

  std::shared_ptr<State> state_;
  std::string prefix_;
};

}  // namespace fullshard::rendezvous
