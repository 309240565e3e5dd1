// The loadable form of one GPU kernel: a header that says how to launch it, then the machine code of one
// architecture, where the compiler has an assembler, and the PTX that it was made from, which any driver
// translates for its device. Without LLVM and without CUDA; compiler and client use it.
//
// The kernel's parameters are its buffers' addresses, then its symbols as 64-bit integers; of one with
// members one MemberTable (compiler/support/member_table.h). A launch of `blocks` × `threads` covers `units`
// points of the outer domain when blocks * points_per_block >= units; with fewer blocks, each takes several
// iterations, but a gemm's, whose launch has all of its blocks. Errors: DATA_LOSS for bytes that are no such
// image.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kiln {

inline constexpr char kGpuEntryName[] = "kiln_kernel";

struct GpuImage {
  uint32_t threads = 0;           // of a block
  uint32_t points_per_block = 0;  // of the outer domain
  uint32_t buffers = 0;
  uint32_t symbols = 0;
  uint32_t members = 0;          // that one launch takes, by a table; 0: the operands are parameters
  uint64_t stored = UINT64_MAX;  // bits of the first buffers: the kernel stores to them
  std::string cubin;             // ELF; empty: none was made
  std::string ptx;               // zero-terminated by std::string

  // Of buffers that have no bit it is not known: true.
  bool Stores(size_t buffer) const { return buffer >= 64 || (stored >> buffer & 1) != 0; }
};

std::string SerializeGpuImage(const GpuImage& image);
absl::StatusOr<GpuImage> ParseGpuImage(absl::string_view bytes);

}  // namespace kiln
