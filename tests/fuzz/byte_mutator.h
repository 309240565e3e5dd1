// Bytes that are nearly what they were, by a seed: flipped, cut, doubled, lengthened, overwritten.
// Threads: one at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>

namespace kiln {

class ByteMutator {
 public:
  explicit ByteMutator(uint64_t seed) : random_(seed) {}

  uint64_t Pick(uint64_t below) { return random_() % below; }
  // `bytes` is not empty.
  std::string Mutate(std::string bytes) {
    for (uint64_t changes = 1 + Pick(4); changes > 0 && !bytes.empty(); --changes) {
      const size_t at = Pick(bytes.size());
      const size_t size = 1 + Pick(std::min<size_t>(16, bytes.size() - at));
      switch (Pick(6)) {
        case 0: bytes[at] = static_cast<char>(bytes[at] ^ (1 << Pick(8))); break;
        case 1: bytes.resize(at); break;
        case 2: bytes.insert(at, bytes.substr(at, size)); break;
        case 3: bytes.erase(at, size); break;
        case 4: bytes.replace(at, size, std::string(size, Pick(2) == 0 ? '\xff' : '\0')); break;
        default:
          for (size_t i = at; i < at + size; ++i) bytes[i] = static_cast<char>(Pick(256));
      }
    }
    return bytes;
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace kiln
