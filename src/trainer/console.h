#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>

#include "fullshard/base/deadline.h"
#include "fullshard/trainer/train.h"
#include "trainer/step_report.h"

namespace fullshard::trainer {

/// Lines for people, and under them a status line that is redrawn in place where that is wanted:
/// a whole line is never broken by it.
class Console {
 public:
  /// `context` must outlive it. A null context.out makes every call do nothing.
  Console(const RunContext& context, bool status_line);

  /// Wipes the status line.
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// Prints whole lines; `text` ends in one's end.
  void print(std::string_view text);

  /// Replaces the status line, a line without its end; cut to the terminal's width. Redrawn at most
  /// ten times a second.
  void status(std::string text);

  /// Wipes the status line until status() is called again.
  void end_status();

  bool has_status_line() const { return status_line_; }
  bool has_colour() const { return context_.colour; }

  /// Columns of the terminal.
  int columns() const { return context_.columns ? context_.columns() : 80; }

 private:
  void wipe();
  void draw();

  const RunContext& context_;
  bool status_line_;
  bool drawn_ = false;
  std::string status_;
  std::optional<base::Deadline> next_redraw_;
};

}  // namespace fullshard::trainer
