#pragma once

#include <condition_variable>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "fullshard/comm/exchange.h"
#include "support/temporary_folder.h"

namespace fullshard::comm::testing {

/// An exchange between threads.
class MemoryExchange final : public Exchange {
 public:
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, base::Duration timeout) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

/// An exchange between processes, through files in a folder of its own. Copies refer to the same
/// folder; it is removed with the last copy in the process that made it.
class FileExchange final : public Exchange {
 public:
  FileExchange();

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, base::Duration timeout) override;

 private:
  std::filesystem::path file(const std::string& key) const;

  std::shared_ptr<const fullshard::testing::TemporaryFolder> folder_;
};

}  // namespace fullshard::comm::testing
