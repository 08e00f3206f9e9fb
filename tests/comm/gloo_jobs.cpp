#include "comm/gloo_jobs.h"

#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

namespace fullshard::comm::testing {

TemporaryFolder::TemporaryFolder() : maker_(getpid()) {
  std::string name = (std::filesystem::temp_directory_path() / "fullshard-gloo-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr)
    throw std::runtime_error("cannot make a folder like " + name);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (maker_ == getpid()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace fullshard::comm::testing
