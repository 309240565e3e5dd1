// A seed's stream of numbers, the same in every process. Threads: one.
#pragma once

#include <chrono>
#include <cstdint>
#include <random>

namespace kiln::sim {

class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed) {}
  int Below(int limit) { return static_cast<int>(engine_() % static_cast<uint64_t>(limit)); }
  bool Chance(int percent) { return Below(100) < percent; }
  std::chrono::microseconds Upto(std::chrono::milliseconds longest) {
    return std::chrono::microseconds(engine_() %
                                     static_cast<uint64_t>(std::chrono::microseconds(longest).count() + 1));
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace kiln::sim
