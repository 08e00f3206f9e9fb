#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "comm/processes.h"
#include "fullshard/comm/c10d/gloo.h"
#include "support/temporary_folder.h"

namespace fullshard::comm::testing {

/// Joins a world of ranks of which each is on the host of its entry.
inline World join_hosts(int rank, const std::vector<int>& hosts, const rendezvous::Store& store,
                        CommOptions options) {
  options.interface = "lo";
  options.host = "host" + std::to_string(hosts[static_cast<std::size_t>(rank)]);
  return make_hosts_world(rank, static_cast<int>(hosts.size()), store, options);
}

/// Ranks of one world as processes that meet in a file. Children are numbered as they are started.
class GlooJob {
 public:
  GlooJob(int size, CommOptions options) : size_(size), options_(std::move(options)) {}

  /// As many ranks as there are hosts, each of which is on the host of its entry.
  GlooJob(std::vector<int> hosts, CommOptions options)
      : size_(static_cast<int>(hosts.size())),
        options_(std::move(options)),
        hosts_(std::move(hosts)) {}

  /// Starts a child that joins as `rank` and runs `body`.
  void start(int rank, std::function<void(World&)> body) {
    start_alone([this, rank, body = std::move(body)] {
      World world = join(rank);
      body(world);
    });
  }

  /// Starts a child that joins by itself, if at all.
  void start_alone(const std::function<void()>& body) { processes_.start(body); }

  /// In a child.
  World join(int rank) const { return join(rank, options_); }

  /// In a child, with its own options.
  World join(int rank, const CommOptions& options) const {
    const auto store = rendezvous::Store::over_file((folder_.path() / "store").string(), size_);
    return hosts_.empty() ? make_gloo_world(rank, size_, store, options)
                          : join_hosts(rank, hosts_, store, options);
  }

  Processes& processes() { return processes_; }

  void expect_well(int child) {
    const Ended ended = processes_.wait(child);
    EXPECT_TRUE(ended.exited_well()) << "child " << child << " exit code " << ended.exit_code
                                     << " signal " << ended.signal << ": " << ended.text;
  }

 private:
  fullshard::testing::TemporaryFolder folder_;
  int size_;
  CommOptions options_;
  std::vector<int> hosts_;
  Processes processes_;  // the last member: its children end before the folder goes
};

}  // namespace fullshard::comm::testing
