#include "launcher/failure.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>

#include "fullshard/base/error.h"

namespace fullshard::launcher {
namespace {

constexpr int kUsageExitCode = 2;

bool is_any(std::string_view name, std::initializer_list<base::ErrorCode> codes) {
  return std::ranges::any_of(codes, [name](auto code) { return name == base::to_string(code); });
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

}  // namespace

std::optional<Failure> parse_report(int rank, std::string_view line) {
  const auto report = nlohmann::json::parse(line, nullptr, false);
  if (!report.is_object()) return std::nullopt;
  using base::ErrorCode;
  const std::string code = report.value("code", "");
  const std::chrono::nanoseconds time(report.value("time_ns", std::int64_t{0}));
  return Failure{
      .rank = rank,
      .time = base::Clock::time_point(std::chrono::duration_cast<base::Clock::duration>(time)),
      .what = "failed: " + report.value("message", ""),
      .consequence = is_any(code, {ErrorCode::kPeerLost, ErrorCode::kTimeout}),
      .usage = is_any(code, {ErrorCode::kUsage, ErrorCode::kConfiguration})};
}

std::optional<Failure> failure_of_status(int rank, int wait_status) {
  Failure failure{.rank = rank, .time = base::Clock::now(), .what = ""};
  if (WIFSIGNALED(wait_status)) {
    failure.what = "was killed by " + signal_name(WTERMSIG(wait_status));
    return failure;
  }
  if (WEXITSTATUS(wait_status) == 0) return std::nullopt;
  failure.what = fmt::format("ended with exit code {}", WEXITSTATUS(wait_status));
  failure.usage = WEXITSTATUS(wait_status) == kUsageExitCode;
  return failure;
}

void order_by_cause(std::vector<Failure>& failures) {
  std::ranges::stable_sort(failures, {}, [](const Failure& failure) {
    return std::tuple(failure.consequence, failure.time);
  });
}

std::string summary(const std::vector<Failure>& failures, base::Clock::time_point start) {
  std::string text;
  for (const Failure& failure : failures) {
    text += fmt::format("fullshard: {}rank {} {} ({:.1f} s after the start)\n",
                        text.empty() ? "" : "then ", failure.rank, failure.what,
                        base::seconds(failure.time - start));
  }
  return text;
}

}  // namespace fullshard::launcher
