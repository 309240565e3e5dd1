#include "tests/sim/pairs.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace kiln::sim {

Pairs::Pairs(std::string title, std::vector<std::string> states, std::vector<Row> rows)
    : title_(std::move(title)),
      states_(std::move(states)),
      rows_(std::move(rows)),
      counts_(states_.size() * rows_.size()) {}

std::string Pairs::Print() const {
  std::string table = absl::StrFormat("%-16s", title_);
  for (const std::string& state : states_) absl::StrAppendFormat(&table, "%14s", state);
  for (size_t input = 0; input < rows_.size(); ++input) {
    absl::StrAppendFormat(&table, "\n%-16s", rows_[input].name);
    for (size_t state = 0; state < states_.size(); ++state) {
      const uint64_t count = counts_[input * states_.size() + state];
      const bool shown = count > 0 || rows_[input].can[state] != '.';
      absl::StrAppendFormat(&table, "%14s", shown ? absl::StrCat(count) : "-");
    }
  }
  return table + "\n";
}

std::string Pairs::Gap() const {
  for (size_t input = 0; input < rows_.size(); ++input) {
    for (size_t state = 0; state < states_.size(); ++state) {
      const bool met = counts_[input * states_.size() + state] > 0;
      if (met == (rows_[input].can[state] == 'x')) continue;
      return absl::StrCat(title_, ": ", rows_[input].name, " × ", states_[state],
                          met ? " was met, and is said not to be" : " was never met");
    }
  }
  return "";
}

}  // namespace kiln::sim
