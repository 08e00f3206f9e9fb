#include "comm/exchanges.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "fullshard/base/error.h"

namespace fullshard::comm::testing {
namespace {

base::Error not_set(const std::string& key) {
  return {base::ErrorCode::kTimeout, "nobody has set '" + key + "'"};
}

}  // namespace

void MemoryExchange::set(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  values_[key] = value;
  changed_.notify_all();
}

std::string MemoryExchange::get(const std::string& key, base::Duration timeout) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, timeout, [&] { return values_.count(key) > 0; })) throw not_set(key);
  return values_[key];
}

FileExchange::FileExchange() : folder_(std::make_shared<fullshard::testing::TemporaryFolder>()) {}

std::filesystem::path FileExchange::file(const std::string& key) const {
  std::string name = key;
  std::replace(name.begin(), name.end(), '/', '.');
  return folder_->path(name);
}

void FileExchange::set(const std::string& key, const std::string& value) {
  const auto draft = file(key + ".draft" + std::to_string(getpid()));
  std::ofstream(draft) << value;
  std::filesystem::rename(draft, file(key));
}

std::string FileExchange::get(const std::string& key, base::Duration timeout) {
  const auto deadline = base::Deadline::after(timeout);
  while (!deadline.passed()) {
    if (std::ifstream in(file(key)); in) {
      std::ostringstream text;
      text << in.rdbuf();
      return text.str();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  throw not_set(key);
}

}  // namespace fullshard::comm::testing
