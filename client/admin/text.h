// Text for people: aligned tables, sizes and ages. Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace kiln {

// A column whose header starts with '>' is set to the right. The last column is not padded.
class Table {
 public:
  explicit Table(std::vector<std::string> headers);
  void Add(std::vector<std::string> cells);
  size_t rows() const { return rows_.size(); }
  std::string ToString() const;

 private:
  std::vector<std::string> headers_;
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

std::string HumanBytes(uint64_t bytes);              // "3.4 MiB"
std::string HumanSeconds(double seconds);            // "12 ms", "3.2 s", "4 m", "2 h", "5 d"
std::string Age(int64_t unix_seconds, int64_t now);  // "never" for 0
std::string ShortHex(absl::string_view key);         // the first 12 digits

// What came from elsewhere, safe for a terminal: control characters but newline and tab become '?'.
std::string Printable(absl::string_view text);

}  // namespace kiln
