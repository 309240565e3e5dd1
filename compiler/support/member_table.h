// The parameter of a GPU kernel that is launched for several members: one struct by value, so that a launch
// needs no device memory. The layout is shared by code generation and the client's runtime.
//
//   uint32 first[members + 1]     member m has the blocks [first[m], first[m + 1]); absent members have none
//   (up to the next 8 bytes)
//   uint64 words[members][buffers + symbols]     addresses, then symbols
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace kiln {

struct MemberTable {
  static constexpr uint32_t kBytesMax = 4096;  // of parameters, on every device and driver

  uint32_t members = 0;
  uint32_t words = 0;  // of each

  // The most members that fit.
  static constexpr uint32_t MembersThatFit(uint32_t words) {
    // Less the last entry of `first` and the room before the words.
    return (kBytesMax - 2 * sizeof(uint32_t)) / (sizeof(uint32_t) + words * sizeof(uint64_t));
  }
  constexpr uint32_t WordsOffset() const {
    return (static_cast<uint32_t>(sizeof(uint32_t)) * (members + 1) + 7) / 8 * 8;
  }
  constexpr uint32_t Bytes() const {
    return WordsOffset() + members * words * static_cast<uint32_t>(sizeof(uint64_t));
  }
};

// Writes one: as many Adds as there are members, or fewer.
class MemberTableWriter {
 public:
  explicit MemberTableWriter(MemberTable layout) : layout_(layout), bytes_(layout.Bytes()) {}

  void Add(uint32_t blocks, void* const* buffers, uint32_t buffer_count, const int64_t* symbols) {
    PutFirst(added_);
    char* words = bytes_.data() + layout_.WordsOffset() + size_t{added_} * layout_.words * sizeof(uint64_t);
    std::memcpy(words, buffers, buffer_count * sizeof(void*));
    const uint32_t symbol_count = layout_.words - buffer_count;
    if (symbol_count > 0)
      std::memcpy(words + buffer_count * sizeof(void*), symbols, symbol_count * sizeof(int64_t));
    blocks_ += blocks;
    ++added_;
  }

  // The parameter; valid as long as this.
  void* Finish() {
    for (uint32_t m = added_; m <= layout_.members; ++m) PutFirst(m);
    return bytes_.data();
  }
  uint32_t blocks() const { return blocks_; }  // of all members

 private:
  void PutFirst(uint32_t member) {
    std::memcpy(bytes_.data() + member * sizeof(blocks_), &blocks_, sizeof(blocks_));
  }

  const MemberTable layout_;
  std::vector<char> bytes_;
  uint32_t added_ = 0;
  uint32_t blocks_ = 0;
};

}  // namespace kiln
