// What glibc's heap keeps of freed memory.
//
// It maps blocks above a threshold by themselves, and gives the top of the heap back once twice that
// threshold lies free there; the threshold grows to the largest mapped block that was freed, to 32 MiB at
// most. A step of inference whose tensors have a few MB each then meets all its pages anew, at each call.
#pragma once

namespace kiln::runtime {

// Raises the threshold to its most, as if a block of that size had been freed: up to 64 MiB of freed memory
// stay in the process. Not where the thresholds were set by its user (MALLOC_TRIM_THRESHOLD_ and others,
// mallopt), nor under another allocator. For inference: in training blocks of each layer that glibc maps
// leave no holes between what is saved. Threads: any.
void KeepFreedMemory();

}  // namespace kiln::runtime
