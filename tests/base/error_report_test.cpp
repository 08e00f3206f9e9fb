#include "fullshard/base/error_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "fullshard/base/error.h"
#include "support/temporary_folder.h"

namespace fullshard::base {
namespace {

using ::testing::HasSubstr;

// report_error() with a file for torch's elastic agent; what it wrote there, and on stderr.
class ElasticErrorFile : public ::testing::Test {
 protected:
  ~ElasticErrorFile() override { ::unsetenv(kElasticErrorFileVariable); }

  void report(const std::exception& error, const std::string& path) {
    ::setenv(kElasticErrorFileVariable, path.c_str(), 1);
    ::testing::internal::CaptureStderr();
    report_error(error);
    shown_ = ::testing::internal::GetCapturedStderr();
  }

  fullshard::testing::TemporaryFolder folder_;
  std::filesystem::path path_ = folder_.path("error.json");
  std::string shown_;
};

TEST_F(ElasticErrorFile, HasTheFormOfTorchsOwn) {
  const std::time_t before = std::time(nullptr);
  report(Error(ErrorCode::kFile, "no \"such\" file \xff"), path_);
  std::ifstream file(path_);
  const auto message = nlohmann::json::parse(file).at("message");
  EXPECT_THAT(message.at("message").get<std::string>(), HasSubstr("file: no \"such\" file "));
  const auto& extra = message.at("extraInfo");
  EXPECT_EQ(extra.at("py_callstack"), message.at("message"));
  EXPECT_GE(std::stoll(extra.at("timestamp").get<std::string>()), before);
  EXPECT_THAT(shown_, HasSubstr("no \"such\" file"));
}

TEST_F(ElasticErrorFile, ThatCannotBeWrittenHidesNothing) {
  report(std::runtime_error("disk is full"), folder_.path("none/error.json"));
  EXPECT_EQ(shown_, "fullshard: disk is full\n");
}

TEST_F(ElasticErrorFile, WithoutANameIsNotWanted) {
  report(std::runtime_error("disk is full"), "");
  EXPECT_EQ(shown_, "fullshard: disk is full\n");
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

}  // namespace
}  // namespace fullshard::base
