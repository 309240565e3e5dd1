// Whether the bytes of an object are those of its key. Threads: pure functions.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace kiln {

// INVALID_ARGUMENT unless `packed` is one zstd frame, with its size in the header, of bytes whose digest is
// `key`.
absl::Status CheckObject(absl::string_view key, absl::string_view packed);

}  // namespace kiln
