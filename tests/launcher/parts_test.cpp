#include <gmock/gmock.h>

#include "fullshard/base/error.h"
#include "fullshard/base/error_report.h"
#include "launcher/failure.h"
#include "launcher/fd.h"
#include "launcher/rank.h"

namespace fullshard::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// What report_error writes to a launcher.
std::string reported(const std::exception& error) {
  Pipe pipe = make_pipe(true);
  ::setenv(base::kErrorFdVariable, std::to_string(pipe.write.get()).c_str(), 1);
  base::report_error(error);
  ::unsetenv(base::kErrorFdVariable);
  std::string line;
  LineReader(std::move(pipe.read)).finish([&](std::string_view text) { line = text; });
  return line;
}

TEST(Report, CarriesMessageCodeAndTime) {
  const auto before = base::Clock::now();
  const auto failure =
      parse_report(2, reported(base::Error(base::ErrorCode::kFile, "line 1\n\"line 2\" \xff")));
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->rank, 2);
  EXPECT_THAT(failure->what, HasSubstr("failed: line 1\n\"line 2\" "));
  EXPECT_FALSE(failure->consequence);
  EXPECT_FALSE(failure->usage);
  EXPECT_GE(failure->time, before);
  EXPECT_LE(failure->time, base::Clock::now());
}

TEST(Report, TellsConsequencesAndUsageFromOtherErrors) {
  const auto parsed = [](base::ErrorCode code) {
    return parse_report(0, reported(base::Error(code, ""))).value();
  };
  EXPECT_TRUE(parsed(base::ErrorCode::kPeerLost).consequence);
  EXPECT_TRUE(parsed(base::ErrorCode::kTimeout).consequence);
  EXPECT_FALSE(parsed(base::ErrorCode::kMismatch).consequence);
  EXPECT_TRUE(parsed(base::ErrorCode::kConfiguration).usage);
  EXPECT_FALSE(parse_report(0, reported(std::runtime_error("x")))->consequence);
}

TEST(Report, OtherTextIsNoReport) {
  EXPECT_FALSE(parse_report(0, "hello"));
  EXPECT_FALSE(parse_report(0, "[1]"));
  EXPECT_FALSE(parse_report(0, ""));
}

TEST(Report, GoesToStderrWithoutALauncher) {
  ::unsetenv(base::kErrorFdVariable);
  ::testing::internal::CaptureStderr();
  base::report_error(std::runtime_error("disk is full"));
  ::setenv(base::kErrorFdVariable, "12345", 1);  // of a launcher that did not start this process
  base::report_error(std::runtime_error("again"));
  ::unsetenv(base::kErrorFdVariable);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "fullshard: disk is full\nfullshard: again\n");
}

TEST(Lines, AreCutWhereverThePiecesEnd) {
  Pipe pipe = make_pipe(true);
  LineReader reader(std::move(pipe.read));
  std::vector<std::string> lines;
  const auto keep = [&](std::string_view line) { lines.emplace_back(line); };
  for (const std::string piece : {"a", "b\nc", "\n\nd"}) {
    write_fully(pipe.write.get(), piece.data(), piece.size());
    reader.read(keep);
  }
  EXPECT_THAT(lines, ElementsAre("ab", "c", ""));
  pipe.write.reset();
  reader.read(keep);
  EXPECT_THAT(lines, ElementsAre("ab", "c", "", "d"));
  EXPECT_EQ(reader.fd(), -1);
}

}  // namespace
}  // namespace fullshard::launcher
