#include "launcher/signals.h"

#include <sys/signalfd.h>

namespace fullshard::launcher {

SignalScope::SignalScope() {
  sigset_t taken;
  sigemptyset(&taken);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGUSR2}) {
    struct sigaction outer {};
    sigaction(signal, nullptr, &outer);
    if (outer.sa_handler != SIG_IGN) sigaddset(&taken, signal);
  }
  fd_ = Fd(::signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_.open()) fail_errno("watch for signals");
  pthread_sigmask(SIG_BLOCK, &taken, &outer_);
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &usual, &outer_child_);
}

SignalScope::~SignalScope() {
  // What arrived too late for the job must not strike the caller after it.
  while (next() != 0) {
  }
  sigaction(SIGCHLD, &outer_child_, nullptr);
  pthread_sigmask(SIG_SETMASK, &outer_, nullptr);
}

int SignalScope::next() {
  signalfd_siginfo info{};
  const ssize_t size = ::read(fd_.get(), &info, sizeof(info));
  return size == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
}

}  // namespace fullshard::launcher
