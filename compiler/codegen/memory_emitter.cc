#include "compiler/codegen/memory_emitter.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "compiler/ir/dtype_groups.h"
#include "llvm/IR/MDBuilder.h"

namespace kiln {
namespace {

using ir::ByteWidth;

llvm::Align ElementAlign(v1::DType dtype) { return llvm::Align(static_cast<uint64_t>(ByteWidth(dtype))); }

}  // namespace

void MemoryEmitter::Enter() {
  llvm::MDBuilder metadata(b_.getContext());
  llvm::MDNode* domain = metadata.createAnonymousAliasScopeDomain("kernel");
  std::vector<llvm::Metadata*> scopes;
  for (int k = 0; k < k_.kernel.buffers_size(); ++k) {
    scopes.push_back(metadata.createAnonymousAliasScope(domain, absl::StrCat("b", k)));
  }
  for (size_t k = 0; k < scopes.size(); ++k) {
    std::vector<llvm::Metadata*> others = scopes;
    others.erase(others.begin() + k);
    own_scope_.push_back(llvm::MDNode::get(b_.getContext(), {scopes[k]}));
    other_scopes_.push_back(llvm::MDNode::get(b_.getContext(), others));
  }
  zero_slot_ = b_.Slot(b_.getInt64Ty(), "zero");
  b_.CreateStore(b_.getInt64(0), zero_slot_);
}

llvm::Value* MemoryEmitter::Address(const v1::LoopOp& op) {
  return b_.CreateGEP(k_.MemoryType(k_.BufferDType(op)), k_.buffers[op.buffer()], index_.Scalar(op.index()));
}

llvm::Align MemoryEmitter::VectorAlign(const v1::LoopOp& op) const {
  return ElementAlign(k_.BufferDType(op));
}

llvm::Instruction* MemoryEmitter::Annotate(llvm::Instruction* access, uint32_t buffer) {
  access->setMetadata(llvm::LLVMContext::MD_alias_scope, own_scope_[buffer]);
  access->setMetadata(llvm::LLVMContext::MD_noalias, other_scopes_[buffer]);
  return access;
}

// Where the condition is false the load reads a zero of its own.
llvm::Value* MemoryEmitter::ScalarLoad(const v1::LoopOp& op, llvm::Value* index, llvm::Value* condition) {
  const v1::DType dtype = k_.BufferDType(op);
  llvm::Type* type = k_.MemoryType(dtype);
  llvm::Value* pointer = b_.CreateGEP(type, k_.buffers[op.buffer()], index);
  if (condition != nullptr) {
    pointer = b_.CreateSelect(condition, pointer, zero_slot_);
    return convert_.FromMemory(b_.CreateAlignedLoad(type, pointer, ElementAlign(dtype)), dtype);
  }
  return convert_.FromMemory(Annotate(b_.CreateAlignedLoad(type, pointer, ElementAlign(dtype)), op.buffer()),
                             dtype);
}

LaneValue MemoryEmitter::Load(const v1::LoopOp& op) {
  const v1::DType dtype = k_.BufferDType(op);
  const LaneValue mask = op.args_size() > 0 ? at_.values[op.args(0)] : LaneValue{};
  if (const auto packed = packed_.find(&op); packed != packed_.end()) {
    const PackedTile& tile = packed->second;
    llvm::Value* place = b_.CreateInBoundsGEP(tile.type, tile.slots, {b_.I64(0), tile.position});
    return {convert_.FromMemory(b_.CreateLoad(tile.type->getArrayElementType(), place), dtype),
            at_.lanes > 1};
  }
  const std::optional<int64_t> coefficient = at_.lanes == 1 ? 0 : index_.Coefficient(op.index());
  if (coefficient == 0) {
    llvm::Value* index = index_.Scalar(op.index());
    if (!mask.vector) return {ScalarLoad(op, index, mask.v), false};
    // Some lane that is asked for vouches for the address.
    llvm::Value* active = at_.ActiveMask(mask);
    llvm::Value* loaded = at_.Splat(ScalarLoad(op, index, b_.Any(active)));
    return {b_.CreateSelect(active, loaded, llvm::Constant::getNullValue(loaded->getType())), true};
  }
  llvm::Value* active = at_.ActiveMask(mask);
  llvm::Type* type = at_.Wide(k_.MemoryType(dtype));
  if (coefficient != 1)
    return {convert_.FromMemory(Gather(op, index_.Vector(op.index()), active), dtype), true};
  Prefetch(op);
  llvm::Value* pointer = Address(op);
  llvm::Instruction* loaded;
  if (active == nullptr) {
    loaded = b_.CreateAlignedLoad(type, pointer, VectorAlign(op));
  } else {
    loaded =
        b_.CreateMaskedLoad(type, pointer, ElementAlign(dtype), active, llvm::Constant::getNullValue(type));
  }
  return {convert_.FromMemory(Annotate(loaded, op.buffer()), dtype), true};
}

llvm::Value* MemoryEmitter::Gather(const v1::LoopOp& op, llvm::Value* indices, llvm::Value* mask) {
  const v1::DType dtype = k_.BufferDType(op);
  if (ByteWidth(dtype) < 4 || !k_.operations.gathers) return ElementGather(op, indices, mask);
  llvm::Type* type = at_.Wide(k_.MemoryType(dtype));
  llvm::Value* pointers = b_.CreateGEP(k_.MemoryType(dtype), k_.buffers[op.buffer()], indices);
  return Annotate(
      b_.CreateMaskedGather(type, pointers, ElementAlign(dtype), mask, llvm::Constant::getNullValue(type)),
      op.buffer());
}

// Element by element, without branches: lanes that are off read a zero of their own.
llvm::Value* MemoryEmitter::ElementGather(const v1::LoopOp& op, llvm::Value* indices, llvm::Value* mask) {
  const v1::DType dtype = k_.BufferDType(op);
  llvm::Type* type = k_.MemoryType(dtype);
  llvm::Value* result = llvm::PoisonValue::get(at_.Wide(type));
  for (unsigned lane = 0; lane < at_.lanes; ++lane) {
    llvm::Value* pointer =
        b_.CreateGEP(type, k_.buffers[op.buffer()], b_.CreateExtractElement(indices, uint64_t{lane}));
    llvm::LoadInst* loaded;
    if (mask != nullptr) {
      pointer = b_.CreateSelect(b_.CreateExtractElement(mask, uint64_t{lane}), pointer, zero_slot_);
      loaded = b_.CreateAlignedLoad(type, pointer, ElementAlign(dtype));
    } else {
      loaded = b_.CreateAlignedLoad(type, pointer, ElementAlign(dtype));
      Annotate(loaded, op.buffer());
    }
    result = b_.CreateInsertElement(result, loaded, uint64_t{lane});
  }
  return result;
}

llvm::Value* MemoryEmitter::Accumulated(v1::DType dtype, llvm::Value* old_value, llvm::Value* value) {
  switch (dtype) {
    case v1::F32:
    case v1::F64: return b_.CreateFAdd(old_value, value);
    case v1::F16:
    case v1::BF16:
      return convert_.HalfFromFloat(dtype, b_.CreateFAdd(convert_.FloatFromHalf(dtype, old_value),
                                                         convert_.FloatFromHalf(dtype, value)));
    default: return b_.CreateAdd(old_value, value);
  }
}

void MemoryEmitter::ScalarStore(const v1::LoopOp& op, llvm::Value* index, llvm::Value* value) {
  const v1::DType dtype = k_.BufferDType(op);
  llvm::Type* type = k_.MemoryType(dtype);
  llvm::Value* pointer = b_.CreateGEP(type, k_.buffers[op.buffer()], index);
  if (op.mode() == v1::STORE_ACCUMULATE) {
    llvm::Value* old_value = convert_.FromMemory(
        Annotate(b_.CreateAlignedLoad(type, pointer, ElementAlign(dtype)), op.buffer()), dtype);
    value = Accumulated(dtype, old_value, value);
  }
  Annotate(b_.CreateAlignedStore(convert_.ToMemory(value, dtype), pointer, ElementAlign(dtype)), op.buffer());
}

void MemoryEmitter::Store(const v1::LoopOp& op) {
  const LaneValue value = at_.values[op.args(0)];
  const LaneValue mask = op.args_size() > 1 ? at_.values[op.args(1)] : LaneValue{};
  if (at_.lanes == 1) {
    const auto store = [&] { ScalarStore(op, index_.Scalar(op.index()), value.v); };
    if (mask.v == nullptr) {
      store();
    } else {
      b_.If(mask.v, "store", store);
    }
    return;
  }
  const v1::DType dtype = k_.BufferDType(op);
  llvm::Value* active = at_.ActiveMask(mask);
  llvm::Value* wide = at_.Broadcast(value);
  if (index_.Coefficient(op.index()) == 1) {
    ContiguousStore(op, wide, active);
    return;
  }
  if (op.mode() != v1::STORE_ACCUMULATE && k_.operations.gathers && ByteWidth(dtype) >= 4) {
    llvm::Value* pointers =
        b_.CreateGEP(k_.MemoryType(dtype), k_.buffers[op.buffer()], index_.Vector(op.index()));
    Annotate(b_.CreateMaskedScatter(wide, pointers, ElementAlign(dtype), active), op.buffer());
    return;
  }
  ElementStore(op, wide, active);
}

void MemoryEmitter::ContiguousStore(const v1::LoopOp& op, llvm::Value* value, llvm::Value* active) {
  const v1::DType dtype = k_.BufferDType(op);
  llvm::Value* pointer = Address(op);
  const llvm::Align align = ElementAlign(dtype);
  if (op.mode() == v1::STORE_ACCUMULATE) {
    llvm::Type* type = at_.Wide(k_.MemoryType(dtype));
    llvm::Instruction* old_value =
        active == nullptr
            ? static_cast<llvm::Instruction*>(b_.CreateAlignedLoad(type, pointer, align))
            : b_.CreateMaskedLoad(type, pointer, align, active, llvm::Constant::getNullValue(type));
    value = Accumulated(dtype, convert_.FromMemory(Annotate(old_value, op.buffer()), dtype), value);
  }
  value = convert_.ToMemory(value, dtype);
  if (active == nullptr) {
    VectorStore(op, value, pointer);
  } else {
    Annotate(b_.CreateMaskedStore(value, pointer, align, active), op.buffer());
  }
}

void MemoryEmitter::VectorStore(const v1::LoopOp& op, llvm::Value* value, llvm::Value* pointer) {
  Annotate(b_.CreateAlignedStore(value, pointer, VectorAlign(op)), op.buffer());
}

// In lane order: lanes may meet in one element.
void MemoryEmitter::ElementStore(const v1::LoopOp& op, llvm::Value* value, llvm::Value* mask) {
  const v1::DType dtype = k_.BufferDType(op);
  llvm::Type* i8 = b_.getInt8Ty();
  llvm::Type* i64 = b_.getInt64Ty();
  llvm::Type* type = k_.MemoryType(dtype);
  llvm::AllocaInst* index_slot = b_.Slot(at_.Wide(i64), "indices");
  llvm::AllocaInst* value_slot = b_.Slot(at_.Wide(type), "values");
  llvm::AllocaInst* mask_slot = mask == nullptr ? nullptr : b_.Slot(at_.Wide(i8), "active");
  b_.CreateStore(index_.Vector(op.index()), index_slot);
  b_.CreateStore(convert_.ToMemory(value, dtype), value_slot);
  if (mask != nullptr) b_.CreateStore(b_.CreateZExt(mask, at_.Wide(i8)), mask_slot);
  b_.ScalarLoop(b_.I64(0), b_.I64(at_.lanes), b_.I64(1), "lane", [&](llvm::Value* lane) {
    const auto store = [&] {
      llvm::Value* index = b_.CreateLoad(i64, b_.CreateGEP(i64, index_slot, lane));
      llvm::Value* element = b_.CreateLoad(type, b_.CreateGEP(type, value_slot, lane));
      ScalarStore(op, index, convert_.FromMemory(element, dtype));
    };
    if (mask == nullptr) {
      store();
      return;
    }
    llvm::Value* active = b_.CreateLoad(i8, b_.CreateGEP(i8, mask_slot, lane));
    b_.If(b_.CreateICmpNE(active, b_.getInt8(0)), "active", store);
  });
}

}  // namespace kiln
