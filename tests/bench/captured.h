#pragma once

#include <cstdio>
#include <string>

namespace fullshard::bench {

/// A stream whose text can be read back.
class Captured {
 public:
  Captured() : file_(std::tmpfile()) {}
  ~Captured() { std::fclose(file_); }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;

  std::FILE* file() const { return file_; }

  std::string text() const {
    std::string all;
    std::rewind(file_);
    for (int next = std::fgetc(file_); next != EOF; next = std::fgetc(file_)) {
      all.push_back(static_cast<char>(next));
    }
    return all;
  }

 private:
  std::FILE* file_;
};

}  // namespace fullshard::bench
