#include "comm/shm/packet.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

namespace fullshard::comm::shm {
namespace {

using base::Error;
using base::ErrorCode;

constexpr std::size_t kMaxFds = 4;

// What sendmsg and recvmsg want, in one place that stays put.
struct Envelope {
  explicit Envelope(Packet& packet) : content{&packet, sizeof(packet)} {
    message.msg_iov = &content;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
  }
  Envelope(const Envelope&) = delete;
  Envelope& operator=(const Envelope&) = delete;

  iovec content;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  msghdr message{};
};

void attach(Envelope& envelope, std::span<const int> fds) {
  if (fds.empty()) {
    envelope.message.msg_control = nullptr;
    envelope.message.msg_controllen = 0;
    return;
  }
  cmsghdr* header = CMSG_FIRSTHDR(&envelope.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size_bytes());
  std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  envelope.message.msg_controllen = CMSG_SPACE(fds.size_bytes());
}

std::vector<UniqueFd> detach(Envelope& envelope) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* header = CMSG_FIRSTHDR(&envelope.message); header != nullptr;
       header = CMSG_NXTHDR(&envelope.message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

int milliseconds_left(base::Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()).count();
  return static_cast<int>(std::min<std::int64_t>(left, INT_MAX));
}

short poll_for(int socket, short events, int timeout_ms) {
  pollfd entry{socket, events, 0};
  while (poll(&entry, 1, timeout_ms) < 0) {
    if (errno != EINTR) throw system_error("poll of a socket between ranks");
  }
  return entry.revents;
}

}  // namespace

base::Error system_error(std::string_view what) {
  return {ErrorCode::kSystem, fmt::format("{} failed: {}", what, std::strerror(errno))};
}

std::pair<UniqueFd, UniqueFd> make_socket_pair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    throw system_error("making a pair of sockets");
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

bool try_send(int socket, const Packet& packet, std::span<const int> fds) {
  Packet copy = packet;
  Envelope envelope(copy);
  attach(envelope, fds);
  while (sendmsg(socket, &envelope.message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN) return false;
    throw system_error("sending to another rank");
  }
  return true;
}

bool send(int socket, const Packet& packet, std::span<const int> fds, base::Deadline deadline) {
  while (!try_send(socket, packet, fds)) {
    if (is_hung_up(socket)) return false;
    if (deadline.passed()) {
      throw Error(ErrorCode::kTimeout, "a rank does not read what other ranks send to it");
    }
    poll_for(socket, POLLOUT, milliseconds_left(deadline));
  }
  return true;
}

std::optional<Received> try_receive(int socket) {
  Received received;
  Envelope envelope(received.packet);
  ssize_t bytes = -1;
  while ((bytes = recvmsg(socket, &envelope.message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)) < 0) {
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == ECONNRESET) return std::nullopt;
    throw system_error("receiving from another rank");
  }
  received.fds = detach(envelope);
  if ((envelope.message.msg_flags & MSG_CTRUNC) != 0) {
    throw Error(ErrorCode::kSystem,
                "a descriptor sent by another rank could not be received; raise the limit of open "
                "files (ulimit -n)");
  }
  if (bytes != sizeof(Packet)) return std::nullopt;  // closed, or somebody who is not of this job
  received.packet.text.back() = '\0';
  return received;
}

bool wait_readable(int socket, base::Deadline deadline) {
  return poll_for(socket, POLLIN, milliseconds_left(deadline)) != 0;
}

bool is_hung_up(int socket) { return (poll_for(socket, 0, 0) & (POLLHUP | POLLERR)) != 0; }

}  // namespace fullshard::comm::shm
