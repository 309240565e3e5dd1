#include "compiler/ir/ops.h"

#include <array>

namespace kiln {
namespace {

constexpr LoopOpInfo kRows[] = {
#define KILN_LOOP_OP(number, Enum, name, arity, op_class) \
  {LoopOpcode::k##Enum, #name, arity, LoopOpClass::op_class},
#include "compiler/ir/ops.def"
#undef KILN_LOOP_OP
};
constexpr uint32_t kNumbers = 128;

std::array<const LoopOpInfo*, kNumbers> MakeTable() {
  std::array<const LoopOpInfo*, kNumbers> table{};
  for (const LoopOpInfo& row : kRows) table[static_cast<uint32_t>(row.op)] = &row;
  return table;
}

}  // namespace

const LoopOpInfo* FindLoopOp(uint32_t number) {
  static const std::array<const LoopOpInfo*, kNumbers> table = MakeTable();
  return number < kNumbers ? table[number] : nullptr;
}

const LoopOpInfo& InfoOf(LoopOpcode op) { return *FindLoopOp(static_cast<uint32_t>(op)); }

}  // namespace kiln
