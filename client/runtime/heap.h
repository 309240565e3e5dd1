// Memory that calls free and the next ones want again.
//
// glibc gives free memory at the heap's end back to the kernel above a threshold, and takes it again page by
// page: half a millisecond a megabyte. The thresholds follow the largest block freed, up to 32 MB for blocks
// and 64 MB for what is kept; a program whose many blocks are small never gets there.
#pragma once

namespace kiln::runtime {

// Raises both thresholds to where glibc's own adaptation ends, once a process, and leaves alone what the user
// has set (MALLOC_…_, GLIBC_TUNABLES). Returns whether they are raised now. Threads: any.
bool KeepFreedMemory();

}  // namespace kiln::runtime
