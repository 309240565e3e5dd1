// How often each input met each state of one machine, against those that can meet. Threads: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kiln::sim {

class Pairs {
 public:
  // A row an input, with a character a state: 'x' where it meets that, else '.'.
  struct Row {
    std::string name;
    std::string can;
  };
  Pairs(std::string title, std::vector<std::string> states, std::vector<Row> rows);

  void Count(size_t input, size_t state) { ++counts_[input * states_.size() + state]; }
  // The table, for people.
  std::string Print() const;
  // The first pair that was not met and can be, or was and can not; empty: there is none.
  std::string Gap() const;
  bool operator==(const Pairs& other) const { return counts_ == other.counts_; }

 private:
  std::string title_;
  std::vector<std::string> states_;
  std::vector<Row> rows_;
  std::vector<uint64_t> counts_;
};

}  // namespace kiln::sim
