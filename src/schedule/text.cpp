#include "fullshard/schedule/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <utility>

#include "fullshard/base/error.h"

namespace fullshard::schedule {
namespace {

constexpr std::string_view kHeader = "fullshard-schedule 1";

void append_list(std::string& text, std::string_view word, const std::vector<int>& units) {
  if (!units.empty())
    fmt::format_to(std::back_inserter(text), " {} {}", word, fmt::join(units, " "));
}

void append_gather(std::string& text, int unit, bool joins) {
  fmt::format_to(std::back_inserter(text), " {}{}", joins ? "+" : "", unit);
}

void append_ahead(std::string& text, const std::vector<Ahead>& gathered) {
  if (!gathered.empty()) text += " ahead";
  for (const Ahead& ahead : gathered) append_gather(text, ahead.unit, ahead.joins);
}

constexpr std::pair<Phase, std::string_view> kPhases[] = {
    {Phase::kForward, "forward"}, {Phase::kBackward, "backward"}, {Phase::kRecompute, "recompute"}};

std::string_view word_of(Phase phase) {
  const auto is_it = [&](const auto& entry) { return entry.first == phase; };
  return std::ranges::find_if(kPhases, is_it)->second;
}

std::optional<Phase> phase_of(std::string_view word) {
  const auto is_it = [&](const auto& entry) { return entry.second == word; };
  const auto* found = std::ranges::find_if(kPhases, is_it);
  if (found == std::end(kPhases)) return std::nullopt;
  return found->first;
}

/// A line of the units that stay from after event `after` on; returns the first of the others.
std::size_t append_staying(std::string& text, const std::vector<Staying>& staying,
                           std::size_t first, std::size_t after) {
  std::size_t next = first;
  for (; next < staying.size() && staying[next].after == after; ++next) {
    if (next == first) text += "stay";
    append_gather(text, staying[next].unit, staying[next].joins);
  }
  if (next > first) text += '\n';
  return next;
}

/// Takes a schedule's text apart word by word, knowing the line it is on.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  bool next_line() {
    if (rest_.empty()) return false;
    const std::size_t end = rest_.find('\n');
    if (end == std::string_view::npos) refuse_at(number_ + 1, "the line does not end in a newline");
    line_ = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    ++number_;
    return true;
  }

  std::string_view line() const { return line_; }

  /// The next word of the line, empty at its end.
  std::string_view word() {
    line_.remove_prefix(std::min(line_.find_first_not_of(' '), line_.size()));
    const std::string_view found = line_.substr(0, line_.find(' '));
    line_.remove_prefix(found.size());
    return found;
  }

  bool at_number() const { return is_digit(next()); }

  int number(std::string_view what) { return to_number(word(), what); }

  std::vector<int> numbers() {
    std::vector<int> found{number("a unit")};
    while (at_number()) found.push_back(number("a unit"));
    return found;
  }

  std::vector<Ahead> gathers() {
    std::vector<Ahead> found{gather()};
    while (at_number() || next() == '+') found.push_back(gather());
    return found;
  }

  void expect_end() {
    const std::string_view extra = word();
    if (!extra.empty()) refuse(fmt::format("'{}' where the line should end", extra));
  }

  [[noreturn]] void refuse(const std::string& what) const { refuse_at(number_, what); }

 private:
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }

  /// The first character of the next word, 0 at the line's end.
  char next() const {
    const std::size_t start = line_.find_first_not_of(' ');
    return start == std::string_view::npos ? '\0' : line_[start];
  }

  Ahead gather() {
    std::string_view found = word();
    const bool joins = found.starts_with('+');
    if (joins) found.remove_prefix(1);
    return {to_number(found, "a unit"), joins};
  }

  int to_number(std::string_view found, std::string_view what) const {
    int value = 0;
    const auto [end, error] = std::from_chars(found.data(), found.data() + found.size(), value);
    if (error != std::errc{} || end != found.data() + found.size() || value < 0) {
      refuse(fmt::format("'{}' where {} should be", found, what));
    }
    return value;
  }

  [[noreturn]] static void refuse_at(int line, const std::string& what) {
    throw base::Error(base::ErrorCode::kInvalidArgument,
                      fmt::format("schedule text, line {}: {}", line, what));
  }

  std::string_view rest_;
  std::string_view line_;
  int number_ = 0;
};

Event parse_event(Reader& reader, Phase phase) {
  Event event{{reader.number("a unit"), phase}, {}, {}};
  std::string_view word = reader.word();
  if (word == "with") {
    event.touch.with = reader.number("a number of units");
    word = reader.word();
  }
  if (word == "evict") {
    event.evict = reader.numbers();
    word = reader.word();
  }
  if (word == "ahead") {
    event.gather_ahead = reader.gathers();
    word = reader.word();
  }
  if (!word.empty()) {
    reader.refuse(
        fmt::format("'{}' where 'with', 'evict', 'ahead' or the line's end should be", word));
  }
  return event;
}

void parse_staying(Reader& reader, Schedule& schedule) {
  for (const Ahead& gather : reader.gathers()) {
    schedule.staying.push_back({schedule.events.size(), gather.unit, gather.joins});
  }
  reader.expect_end();
}

void parse_end(Reader& reader, Schedule& schedule) {
  const std::string_view word = reader.word();
  if (word == "evict") {
    schedule.evict_at_end = reader.numbers();
    reader.expect_end();
  } else if (!word.empty()) {
    reader.refuse(fmt::format("'{}' where 'evict' or the line's end should be", word));
  }
  if (reader.next_line()) reader.refuse("text after the 'end' line");
}

}  // namespace

std::string to_text(const Schedule& schedule) {
  std::string text = fmt::format("{}\nunits {}\n", kHeader, schedule.units);
  std::size_t stay = append_staying(text, schedule.staying, 0, 0);
  for (std::size_t at = 0; at < schedule.events.size(); ++at) {
    const Event& event = schedule.events[at];
    text += fmt::format("{} {}", word_of(event.touch.phase), event.touch.unit);
    if (event.touch.with > 0) text += fmt::format(" with {}", event.touch.with);
    append_list(text, "evict", event.evict);
    append_ahead(text, event.gather_ahead);
    text += '\n';
    stay = append_staying(text, schedule.staying, stay, at + 1);
  }
  text += "end";
  append_list(text, "evict", schedule.evict_at_end);
  return text + "\n";
}

Schedule parse(std::string_view text) {
  Reader reader(text);
  if (!reader.next_line() || reader.line() != kHeader) {
    reader.refuse(fmt::format("'{}' where '{}' should be", reader.line(), kHeader));
  }
  Schedule schedule;
  if (!reader.next_line() || reader.word() != "units") reader.refuse("'units N' should be here");
  schedule.units = reader.number("a number of units");
  reader.expect_end();
  while (reader.next_line()) {
    const std::string_view word = reader.word();
    if (word == "end") {
      parse_end(reader, schedule);
      return schedule;
    }
    if (word == "stay") {
      parse_staying(reader, schedule);
      continue;
    }
    const std::optional<Phase> phase = phase_of(word);
    if (!phase) {
      reader.refuse(fmt::format(
          "'{}' where 'forward', 'backward', 'recompute', 'stay' or 'end' should be", word));
    }
    schedule.events.push_back(parse_event(reader, *phase));
  }
  reader.refuse("the text stops without an 'end' line");
}

}  // namespace fullshard::schedule
