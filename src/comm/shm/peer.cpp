#include "comm/shm/peer.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "fullshard/base/check.h"

namespace fullshard::comm::shm {

Peer Peer::from(Received received) {
  FULLSHARD_CHECK(!received.fds.empty());
  Peer peer;
  peer.pid = received.packet.pid;
  peer.mailbox = std::move(received.fds[0]);
  if (received.fds.size() > 1) peer.process = std::move(received.fds[1]);
  return peer;
}

std::vector<int> Peer::descriptors() const {
  std::vector<int> fds = {mailbox.get()};
  if (process) fds.push_back(process.get());
  return fds;
}

std::optional<std::string> Peer::death() const {
  if (process) {
    pollfd entry{process.get(), POLLIN, 0};
    if (poll(&entry, 1, 0) > 0) return fmt::format("its process {} has ended", pid);
  }
  // Also where there is a pidfd: a rank may be a thread of a process that lives on.
  if (is_hung_up(mailbox.get())) {
    return fmt::format("it has closed its connections (process {})", pid);
  }
  return std::nullopt;
}

Self make_self() {
  Self self;
  self.peer.pid = getpid();
  std::tie(self.inbox, self.peer.mailbox) = make_socket_pair();
  // Opened by the process itself: nobody can mistake a later process with the same number for it.
  self.peer.process = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, self.peer.pid, 0)));
  return self;
}

}  // namespace fullshard::comm::shm
