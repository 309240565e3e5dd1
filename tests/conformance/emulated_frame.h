// What a test and aarch64_runner say to each other, by the latter's standard input and output. Both sides are
// little endian, with structures of one layout.
//
//   a request: EmulatedRequest, then `symbols` numbers of 64 bits, `pieces` EmulatedPieces, `buffers`
//   EmulatedBuffers, the image, the buffers' bytes
//   a reply: EmulatedReply, the buffers' bytes
#pragma once

#include <cstdint>

#include "compiler/support/kernel_abi.h"

namespace kiln::testing {

struct EmulatedRequest {
  uint64_t image_bytes;   // 0: the image of the request before
  uint64_t image_place;   // where the image begins in its mapping
  uint64_t entry_offset;  // from the image's begin
  uint32_t buffers;
  uint32_t symbols;
  uint64_t pieces;
};

struct EmulatedPiece {
  int64_t begin;
  int64_t end;
};

struct EmulatedBuffer {
  uint64_t bytes;
  uint64_t place;  // from a multiple of 64
};

struct EmulatedReply {
  KilnStatus status;
  int32_t code;  // that the last piece returned; those after a failure are not run
  int32_t reserved;
};

}  // namespace kiln::testing
