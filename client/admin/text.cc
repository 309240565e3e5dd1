#include "client/admin/text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "compiler/support/digest.h"

namespace kiln {

Table::Table(std::vector<std::string> headers) : headers_(std::move(headers)) {
  for (std::string& header : headers_) {
    right_.push_back(!header.empty() && header[0] == '>');
    if (right_.back()) header.erase(0, 1);
  }
}

void Table::Add(std::vector<std::string> cells) {
  for (std::string& cell : cells) {
    cell = Printable(cell);
    std::replace(cell.begin(), cell.end(), '\n', ' ');
  }
  cells.resize(headers_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::ToString() const {
  std::vector<size_t> widths;
  for (const std::string& header : headers_) widths.push_back(header.size());
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  const auto line = [&](const std::vector<std::string>& cells) {
    for (size_t i = 0; i < cells.size(); ++i) {
      const std::string pad(widths[i] - cells[i].size(), ' ');
      const bool last = i + 1 == cells.size();
      absl::StrAppend(&out, right_[i] ? pad : "", cells[i], right_[i] || last ? "" : pad, last ? "\n" : "  ");
    }
  };
  line(headers_);
  for (const auto& row : rows_) line(row);
  return out;
}

std::string HumanBytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = bytes;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string HumanSeconds(double seconds) {
  if (seconds < 1) return absl::StrFormat("%.0f ms", seconds * 1e3);
  if (seconds < 120) return absl::StrFormat("%.1f s", seconds);
  if (seconds < 7200) return absl::StrFormat("%.0f m", seconds / 60);
  if (seconds < 48 * 3600) return absl::StrFormat("%.0f h", seconds / 3600);
  return absl::StrFormat("%.0f d", seconds / 86400);
}

std::string Age(int64_t unix_seconds, int64_t now) {
  if (unix_seconds == 0) return "never";
  return HumanSeconds(static_cast<double>(std::max<int64_t>(1, now - unix_seconds)));
}

std::string ShortHex(absl::string_view key) { return ToHex(key.substr(0, 6)); }

std::string Printable(absl::string_view text) {
  std::string out(text.data(), text.size());
  for (char& c : out) {
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f) c = '?';
  }
  return out;
}

}  // namespace kiln
