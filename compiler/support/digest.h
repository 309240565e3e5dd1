// SHA-256. A digest is 32 raw bytes in a std::string; hex is for people and file names.
// Threads: pure functions; a `Sha256Builder` belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kiln {

inline constexpr size_t kDigestBytes = 32;

std::string Sha256(absl::string_view bytes);

// Hashes in pieces. `AddField` writes the length first, so that two different lists of fields
// never hash the same stream.
class Sha256Builder {
 public:
  Sha256Builder();
  ~Sha256Builder();
  Sha256Builder(Sha256Builder&&) = default;
  Sha256Builder& operator=(Sha256Builder&&) = default;

  Sha256Builder& Add(absl::string_view bytes);
  Sha256Builder& AddField(absl::string_view bytes);  // little-endian uint64 length, then the bytes
  Sha256Builder& AddNumber(uint64_t number);         // 8 bytes, little-endian
  std::string Finish();                              // once

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string ToHex(absl::string_view bytes);  // lower case
// INVALID_ARGUMENT for an odd length or another character.
absl::StatusOr<std::string> FromHex(absl::string_view hex);

}  // namespace kiln
