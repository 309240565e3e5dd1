// Landlock: the file trees that the process may open by name; with none, no file at all. It also ends, as far
// as the kernel knows how: binding and connecting TCP sockets, and signals and abstract sockets to processes
// outside. For the calling thread and what it starts, for good. Needs no_new_privs.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace kiln {

struct FileTree {
  std::string path;  // one that is not there is left out
  bool writable = false;
};

// UNIMPLEMENTED where the kernel has no Landlock or it is off; otherwise why it could not be had.
absl::Status RestrictFiles(absl::Span<const FileTree> allowed);

}  // namespace kiln
