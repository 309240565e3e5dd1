// The loop-level operators as an enum and a table of their properties; the rows are in ops.def.
// Threads: pure functions.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace kiln {

// Wire numbers of kernel.proto's LoopOp.op.
enum class LoopOpcode : uint32_t {
#define KILN_LOOP_OP(number, Enum, name, arity, op_class) k##Enum = (number),
#include "compiler/ir/ops.def"
#undef KILN_LOOP_OP
};

enum class LoopOpClass {
  kLeaf,
  kMemory,
  kConvert,
  kFloat,
  kArith,
  kInteger,
  kCompare,
  kLogical,
  kSelect,
  kReduce,
  kRandom
};

struct LoopOpInfo {
  LoopOpcode op;
  absl::string_view name;
  int arity;  // -1: see ops.def
  LoopOpClass op_class;
};

// nullptr for a number that is no operator.
const LoopOpInfo* FindLoopOp(uint32_t number);
// For a valid opcode.
const LoopOpInfo& InfoOf(LoopOpcode op);

inline bool IsExponential(LoopOpcode op) { return op == LoopOpcode::kExp || op == LoopOpcode::kSoftmaxExp; }

// A quotient that is rounded to an integer, or its rest: of integers, what has no value by zero.
inline bool IsIntegerDivision(LoopOpcode op) {
  return op == LoopOpcode::kFloorDiv || op == LoopOpcode::kTruncDiv || op == LoopOpcode::kRemainder ||
         op == LoopOpcode::kFmod;
}

}  // namespace kiln
