// What glibc's heap keeps of freed memory.
//
// It maps blocks above a threshold one by one, and trims the heap's top once twice that threshold is free
// there; the threshold grows to the largest mapped block that was freed, to 32 MiB at most. Inference with
// tensors of a few MB then pays the page faults for all of them at each call.
#pragma once

namespace kiln::runtime {

// Raises the threshold to its maximum, so that up to 64 MiB of freed memory stay in the process. No effect
// where the user set the thresholds (MALLOC_TRIM_THRESHOLD_ and others, mallopt) or under another allocator.
// For inference only: in training, blocks that are mapped one by one avoid fragmentation between saved
// tensors. Threads: any.
void KeepFreedMemory();

}  // namespace kiln::runtime
