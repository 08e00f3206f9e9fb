#include "trainer/console.h"

#include <ostream>
#include <utility>

namespace fullshard::trainer {
namespace {

constexpr base::Duration kRedrawPause = std::chrono::milliseconds(100);
constexpr std::string_view kWipe = "\r\x1b[K";  // to the line's beginning, then erase to its end

}  // namespace

Console::Console(const RunContext& context, bool status_line)
    : context_(context), status_line_(status_line && context.out != nullptr) {}

Console::~Console() { end_status(); }

void Console::print(std::string_view text) {
  if (context_.out == nullptr) return;
  wipe();
  *context_.out << text;
  draw();
  context_.out->flush();
}

void Console::status(std::string text) {
  if (!status_line_) return;
  status_ = std::move(text);
  if (next_redraw_ && !next_redraw_->passed()) return;
  next_redraw_ = base::Deadline::after(kRedrawPause);
  wipe();
  draw();
  context_.out->flush();
}

void Console::end_status() {
  if (!status_line_) return;
  status_.clear();
  wipe();
  context_.out->flush();
}

void Console::wipe() {
  if (!std::exchange(drawn_, false)) return;
  *context_.out << kWipe;
}

void Console::draw() {
  if (status_.empty()) return;
  *context_.out << status_;
  drawn_ = true;
}

}  // namespace fullshard::trainer
