// Where in a kernel's loops code is being emitted: the stage, the loop variables, the lanes, and the values
// of the ops that were emitted so far. Set by the code that opens a loop, read by the code that emits its
// body.
//
// Ownership: borrows the builder; the values are the module's. Threads: one. Errors: none.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/codegen/kernel_context.h"

namespace kiln {

// A value of a loop op: the same in all lanes (scalar type), or one per lane.
struct LaneValue {
  llvm::Value* v = nullptr;
  bool vector = false;
};

struct LoopState {
  static constexpr uint32_t kNoVariable = ~0u;

  LoopState(LoopBuilder* builder, size_t ops) : values(ops), b_(*builder) {}

  llvm::Type* Wide(llvm::Type* scalar) const;  // scalar when there is one lane
  llvm::Value* Splat(llvm::Value* scalar) const;
  llvm::Value* Broadcast(LaneValue value) const { return value.vector ? value.v : Splat(value.v); }
  llvm::Value* LaneNumbers(llvm::Type* scalar) const;  // 0, 1, 2, …
  llvm::Value* ActiveMask(LaneValue condition) const;  // combined with the tail's; null: all lanes

  const StageInfo* stage = nullptr;
  std::vector<llvm::Value*> variables;  // by loop: of the first lane
  std::vector<LaneValue> values;        // by op
  unsigned lanes = 1;                   // here
  unsigned vector_lanes = 1;            // in vector loops
  uint32_t vector_variable = kNoVariable;
  llvm::Value* vector_begin = nullptr;  // of the vector loop
  llvm::Value* mask = nullptr;          // <lanes x i1> in a tail, else null
  bool unrolled = false;                // in a loop whose body is there several times, an even number
  unsigned copy = 0;                    // of an unrolled body

 private:
  LoopBuilder& b_;
};

}  // namespace kiln
