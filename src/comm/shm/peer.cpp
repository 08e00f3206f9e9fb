#include "comm/shm/peer.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <string>
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

// By the descriptor, since numbers may be those of another PID namespace.
bool Peer::is_stopped() const {
  if (!process) return false;
  std::ifstream info(fmt::format("/proc/self/fdinfo/{}", process.get()));
  int number = -1;
  for (std::string word; info >> word;) {
    if (word == "Pid:") info >> number;
  }
  if (number <= 0) return false;
  std::ifstream stat(fmt::format("/proc/{}/stat", number));
  std::string text;
  std::getline(stat, text);
  const auto state = text.rfind(") ");  // a program's name may hold anything
  return state != std::string::npos && (text[state + 2] == 'T' || text[state + 2] == 't');
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
