// zstd in one call each way. Threads: pure functions.
// Limits: decompression never allocates or writes more than `raw_size`, which the caller has
// checked against its own limit, so a decompression bomb costs nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kiln {

// One frame. Deterministic for one version of the library.
std::string ZstdCompress(absl::string_view raw, int level = 3);

// What a frame says that it gives. DATA_LOSS where it is none, or does not say.
absl::StatusOr<size_t> ZstdRawSize(absl::string_view packed);
// More than a frame of so many raw bytes ever takes.
constexpr uint64_t ZstdPackedMax(uint64_t raw_size) { return raw_size + raw_size / 64 + 4096; }

// DATA_LOSS when `packed` is not one whole frame that gives exactly `raw_size` bytes.
absl::StatusOr<std::string> ZstdDecompress(absl::string_view packed, size_t raw_size);

}  // namespace kiln
