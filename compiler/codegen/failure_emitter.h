// What a kernel does where a check fails; each back-end has its own.
//
// Threads: one. Errors: none.
#pragma once

#include <cstdint>

#include "llvm/IR/Value.h"

namespace kiln {

class FailureEmitter {
 public:
  virtual ~FailureEmitter() = default;

  // `bad`: i1 or per lane; the first bad lane is reported, with the code of kernel_abi.h, the op, and its
  // value and bound: integers that are the same in all lanes or one per lane.
  virtual void FailWhere(llvm::Value* bad, int32_t code, uint32_t op, llvm::Value* value, llvm::Value* bound,
                         bool is_unsigned) = 0;
};

}  // namespace kiln
