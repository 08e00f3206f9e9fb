#include "comm/shm/bootstrap.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstring>

#include "comm/shared/control_block.h"
#include "comm/shared/report.h"
#include "comm/shared/shared_group.h"
#include "fullshard/base/check.h"
#include "fullshard/base/text.h"

namespace fullshard::comm::shm {
namespace {

using base::Deadline;
using base::Error;
using base::ErrorCode;

constexpr const char* kAddressKey = "comm/shm/address";
constexpr std::size_t kHexDigits = 32;

std::string random_hex() {
  std::array<unsigned char, kHexDigits / 2> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw system_error("getting random bytes");
  }
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

struct Address {
  sockaddr_un name{};
  socklen_t length = 0;
};

// A leading zero byte puts the name into the abstract namespace.
Address abstract_address(const std::string& name) {
  Address address;
  address.name.sun_family = AF_UNIX;
  const std::string text = "fullshard-" + name;
  text.copy(address.name.sun_path + 1, sizeof(address.name.sun_path) - 1);
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return address;
}

UniqueFd make_socket() {
  UniqueFd made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!made) throw system_error("making a UNIX socket");
  return made;
}

bool is_same_user(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

Packet about(PacketKind kind, int rank, const Peer& peer) {
  Packet packet;
  packet.kind = kind;
  packet.rank = rank;
  packet.pid = peer.pid;
  return packet;
}

// Rank 0's side: collects everyone, then tells everyone of everyone.
class Host {
 public:
  Host(int size, const CommOptions& options)
      : size_(size),
        options_(options),
        deadline_(Deadline::after(options.timeout)),
        connections_(static_cast<std::size_t>(size)) {
    joined_.peers.resize(static_cast<std::size_t>(size));
    Self self = make_self();
    joined_.peers[0] = std::move(self.peer);
    joined_.inbox = std::move(self.inbox);
  }

  Joined run(Exchange& exchange) {
    const std::string name = random_hex();
    listener_ = make_socket();
    const Address address = abstract_address(name);
    if (bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address.name), address.length) !=
            0 ||
        listen(listener_.get(), size_) != 0) {
      throw system_error("listening on a UNIX socket");
    }
    exchange.set(kAddressKey, name + token_);
    try {
      while (!missing().empty()) collect();
      introduce();
    } catch (const Error& error) {
      tell_failure(error);
      throw;
    }
    return std::move(joined_);
  }

 private:
  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < size_; ++rank) {
      if (!connections_[static_cast<std::size_t>(rank)]) ranks.push_back(rank);
    }
    return ranks;
  }

  // Waits for one event: a stranger or rank at the door, or the end of a rank that had come.
  void collect() {
    std::vector<pollfd> watched = {{listener_.get(), POLLIN, 0}};
    for (const UniqueFd& connection : connections_) watched.push_back({connection.get(), 0, 0});
    for (const UniqueFd& stranger : strangers_) watched.push_back({stranger.get(), POLLIN, 0});
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_.remaining()).count();
    const int ready = poll(watched.data(), watched.size(),
                           static_cast<int>(std::min<std::int64_t>(left, INT_MAX)));
    if (ready < 0 && errno != EINTR) throw system_error("waiting for ranks");
    if (deadline_.passed()) time_out();
    if (ready <= 0) return;
    for (int rank = 1; rank < size_; ++rank) {
      if (watched[static_cast<std::size_t>(rank) + 1].revents == 0) continue;
      throw Error(ErrorCode::kPeerLost,
                  fmt::format("rank {} (process {}) ended while the ranks were joining", rank,
                              joined_.peers[static_cast<std::size_t>(rank)].pid),
                  rank);
    }
    greet();
    if (watched[0].revents == 0) return;
    UniqueFd stranger(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (stranger && is_same_user(stranger.get())) strangers_.push_back(std::move(stranger));
  }

  // Those who connected and have now said who they are become ranks; who says anything else is
  // dropped.
  void greet() {
    for (auto stranger = strangers_.begin(); stranger != strangers_.end();) {
      if (!wait_readable(stranger->get(), Deadline::after({}))) {
        ++stranger;
        continue;
      }
      auto hello = try_receive(stranger->get());
      if (hello && hello->packet.kind == PacketKind::kHello &&
          hello->packet.text.data() == token_) {
        admit(*stranger, std::move(*hello));
      }
      stranger = strangers_.erase(stranger);
    }
  }

  void admit(UniqueFd& connection, Received hello) {
    const int rank = hello.packet.rank;
    const bool exists = rank >= 1 && rank < size_;
    if (!exists || connections_[static_cast<std::size_t>(rank)]) {
      throw Error(ErrorCode::kMismatch,
                  fmt::format("process {} joined as rank {}, which {}", hello.packet.pid, rank,
                              exists ? "has come already"
                                     : fmt::format("is not one of 1 to {}", size_ - 1)));
    }
    if (hello.packet.bytes != static_cast<std::uint64_t>(size_)) {
      throw Error(ErrorCode::kMismatch,
                  fmt::format("rank {} joined a world of {} ranks, rank 0 one of {}", rank,
                              hello.packet.bytes, size_));
    }
    joined_.peers[static_cast<std::size_t>(rank)] = Peer::from(std::move(hello));
    connections_[static_cast<std::size_t>(rank)] = std::move(connection);
  }

  [[noreturn]] void time_out() const {
    const std::vector<int> absent = missing();
    throw Error(
        ErrorCode::kTimeout,
        fmt::format("joining timed out after {:.3g} s: {} of {} ranks came, {} did not",
                    base::seconds(options_.timeout), size_ - static_cast<int>(absent.size()), size_,
                    base::name_ranks(absent)),
        absent.empty() ? -1 : absent.front());
  }

  void introduce() {
    const std::size_t bytes =
        shared::ControlBlock::bytes_for(size_, shared::staging_for(size_, options_));
    joined_.control = MemfdSegment::create(bytes, "the world's control block");
    shared::ControlBlock::format(joined_.control->data(), size_,
                                 shared::staging_for(size_, options_), options_.heartbeat_timeout);
    Packet control;
    control.kind = PacketKind::kControl;
    control.bytes = bytes;
    const std::array<int, 1> memory = {joined_.control->fd()};
    for (int rank = 1; rank < size_; ++rank) {
      const int to = connections_[static_cast<std::size_t>(rank)].get();
      for (int other = 0; other < size_; ++other) {
        const Peer& peer = joined_.peers[static_cast<std::size_t>(other)];
        send(to, about(PacketKind::kPeer, other, peer), peer.descriptors(), deadline_);
      }
      send(to, control, memory, deadline_);
    }
  }

  void tell_failure(const Error& error) {
    Packet packet;
    packet.kind = PacketKind::kFailed;
    packet.rank = error.rank();
    packet.code = error.code();
    packet.set_text(error.what());
    for (const UniqueFd& connection : connections_) {
      if (connection) try_send(connection.get(), packet, {});
    }
    for (const UniqueFd& stranger : strangers_) try_send(stranger.get(), packet, {});
  }

  int size_;
  CommOptions options_;
  Deadline deadline_;
  std::string token_ = random_hex();
  UniqueFd listener_;
  std::vector<UniqueFd> strangers_;    // connected, have not said who they are
  std::vector<UniqueFd> connections_;  // by rank
  Joined joined_;
};

UniqueFd connect_to(const std::string& name) {
  UniqueFd connection = make_socket();
  const Address address = abstract_address(name);
  while (connect(connection.get(), reinterpret_cast<const sockaddr*>(&address.name),
                 address.length) != 0) {
    if (errno == EINTR) continue;
    if (errno == ECONNREFUSED) {
      throw Error(
          ErrorCode::kPeerLost,
          "rank 0 does not wait for ranks to join any more, or runs where its UNIX socket cannot "
          "be reached (another host, or a container with its own network)",
          0);
    }
    throw system_error("connecting to rank 0's UNIX socket");
  }
  return connection;
}

Received receive_from_host(int connection, Deadline deadline) {
  if (!wait_readable(connection, deadline)) {
    throw Error(ErrorCode::kTimeout, "joining timed out: no word from rank 0", 0);
  }
  auto received = try_receive(connection);
  if (!received) throw Error(ErrorCode::kPeerLost, "rank 0 ended while the ranks were joining", 0);
  if (received->packet.kind == PacketKind::kFailed) {
    throw Error(received->packet.code, fmt::format("rank 0: {}", received->packet.text.data()),
                received->packet.rank);
  }
  return std::move(*received);
}

// Peers come in rank order, the control block last.
void receive_world(int connection, Deadline deadline, Joined& joined) {
  for (Peer& peer : joined.peers) {
    Received received = receive_from_host(connection, deadline);
    FULLSHARD_CHECK(received.packet.kind == PacketKind::kPeer);
    peer = Peer::from(std::move(received));
  }
  Received received = receive_from_host(connection, deadline);
  FULLSHARD_CHECK(received.packet.kind == PacketKind::kControl && received.fds.size() == 1);
  joined.control = MemfdSegment::attach(std::move(received.fds[0]), received.packet.bytes,
                                        "the world's control block");
}

Joined join_as_guest(int rank, int size, Exchange& exchange, const CommOptions& options) {
  const Deadline deadline = Deadline::after(options.timeout);
  const std::string address = exchange.get(kAddressKey, options.timeout);
  FULLSHARD_CHECK_EQ(address.size(), 2 * kHexDigits);
  const UniqueFd connection = connect_to(address.substr(0, kHexDigits));
  Self self = make_self();
  Packet hello = about(PacketKind::kHello, rank, self.peer);
  hello.bytes = static_cast<std::uint64_t>(size);
  hello.set_text(address.substr(kHexDigits));
  if (!send(connection.get(), hello, self.peer.descriptors(), deadline)) {
    throw Error(ErrorCode::kPeerLost, "rank 0 ended while the ranks were joining", 0);
  }
  Joined joined;
  joined.inbox = std::move(self.inbox);
  joined.peers.resize(static_cast<std::size_t>(size));
  receive_world(connection.get(), deadline, joined);
  return joined;
}

}  // namespace

Joined join(int rank, int size, Exchange& exchange, const CommOptions& options) {
  if (rank == 0) return Host(size, options).run(exchange);
  return join_as_guest(rank, size, exchange, options);
}

}  // namespace fullshard::comm::shm
