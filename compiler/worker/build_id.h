// The GNU build id of a program: names the embedded daemon's directories and, for kiln-worker, the
// compiler that is part of every CompileKey. Threads: pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace kiln {

// Of the running program, in hex. Empty when it was linked without one.
std::string OwnBuildId();

// Of an ELF file. NOT_FOUND when it has none or is no ELF file.
absl::StatusOr<std::string> BuildIdOfFile(const std::string& path);

}  // namespace kiln
