// Loop IR for people: named loops with their extents, one op a line.
//
//   kernel exp_1: vectors along the last inner loop
//     x: f32[768*s0] read
//     for i0 in 0..s0 parallel by 4:
//       stage 0:
//         for i1 in 0..768:
//           %0 = load x[768*i0 + i1] : f32
//
// Threads: pure functions. The kernel need not be verified: what is wrong is printed as "?".
#pragma once

#include <string>

#include "kiln/v1/kernel.pb.h"

namespace kiln {

// `notes` names the kernel, its buffers and the operators it comes from; it may be empty.
std::string PrintKernel(const v1::Kernel& kernel, const v1::KernelNotes& notes);

}  // namespace kiln
