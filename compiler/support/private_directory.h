// A directory that nobody but this user and root can write, or put another in the place of: for the daemon's
// socket and its store, whose files are machine code that the user's processes run.
//
// Trust comes from the top. What lies in a directory that everybody may write (/tmp, /var/tmp) has to be this
// user's or root's, or somebody else may have planted it; elsewhere only those can have made it who may write
// there anyway.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace kiln {

// Makes `path` (0700, with its parents) if it is not there; links and ".." in it are the kernel's.
// FAILED_PRECONDITION, which says what to do, where
//  - it is a link, belongs to somebody else, or its group or everybody may write it;
//  - a link or a directory on the way belongs to somebody else but root, and lies where everybody may write;
//  - everybody may write a directory on the way, and it has no sticky bit.
// Where it can't be made, RESOURCE_EXHAUSTED for want of space, else PERMISSION_DENIED. Messages name paths.
absl::Status MakePrivateDirectory(const std::string& path);

}  // namespace kiln
