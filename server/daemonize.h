// What a process does to live in the background, whoever started it: an inherited pipe would hang
// its parent's reader, an inherited terminal would kill it, an inherited mask or affinity cripple it.
// Call before the process has a second thread.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace kiln {

// Leaves session, working directory, signal mask and every descriptor but stdio and the
// ones opened by this program (they are close-on-exec); the caller's process returns from wait at
// once, the daemon goes on in a child.
absl::Status GoToBackground();

// Raises the limit on open files as far as is useful and allowed. FAILED_PRECONDITION where too few may be.
absl::Status AllowOpenFiles();

// Leaves the affinity of who started this: a training job's main thread is often pinned to one core.
void UseAllCores();

// Standard output and error append to `path`, standard input reads nothing. A log beyond 16 MiB is
// renamed to `path`.old first.
absl::Status RedirectOutput(const std::string& path);

// The directory of the running program, with "/" at its end; empty where it can't be told.
std::string FolderOfSelf();

}  // namespace kiln
