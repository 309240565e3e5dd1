// The entry of a kernel that is launched for several members: see compiler/support/member_table.h.
#include "compiler/codegen/thread_emitter.h"
#include "compiler/support/member_table.h"
#include "llvm/IR/IntrinsicsNVPTX.h"
#include "llvm/Support/MathExtras.h"

namespace kiln {
namespace {

constexpr unsigned kGlobalMemory = 1;  // NVPTX's number of the address space

}  // namespace

llvm::Function* ThreadEmitter::EmitMemberEntry() {
  const auto words = static_cast<uint32_t>(kernel_.buffers_size()) + kernel_.symbol_count();
  const MemberTable table{kernel_.schedule().members(), words};
  auto* bytes = llvm::ArrayType::get(b_.getInt8Ty(), table.Bytes());
  auto* type = llvm::FunctionType::get(b_.getVoidTy(), {b_.getPtrTy()}, false);
  auto* entry = llvm::Function::Create(type, llvm::GlobalValue::ExternalLinkage, kGpuEntryName, module_);
  entry->addParamAttr(0, llvm::Attribute::getWithByValType(context_, bytes));
  entry->addParamAttr(0, llvm::Attribute::getWithAlignment(context_, llvm::Align(8)));
  b_.SetInsertPoint(llvm::BasicBlock::Create(context_, "entry", entry));
  llvm::Value* parameter = entry->getArg(0);
  const auto first = [&](llvm::Value* member) {
    llvm::Value* at = b_.CreateInBoundsGEP(b_.getInt32Ty(), parameter, member);
    return b_.CreateLoad(b_.getInt32Ty(), at);
  };

  // The last member that begins at or before this block; those without blocks begin where the next one does,
  // or at the end.
  llvm::Value* block = b_.CreateIntrinsic(b_.getInt32Ty(), llvm::Intrinsic::nvvm_read_ptx_sreg_ctaid_x,
                                          llvm::ArrayRef<llvm::Value*>{});
  llvm::Value* member = I64(0);
  for (uint64_t step = llvm::bit_ceil(uint64_t{table.members}) / 2; step > 0; step /= 2) {
    llvm::Value* next = b_.CreateNSWAdd(member, I64(static_cast<int64_t>(step)));
    llvm::Value* exists = b_.CreateICmpSLT(next, I64(table.members));
    llvm::Value* begins = b_.CreateICmpULE(first(b_.CreateSelect(exists, next, I64(table.members))), block);
    member = b_.CreateSelect(b_.CreateAnd(exists, begins), next, member, "member");
  }
  llvm::Value* begin = first(member);
  llvm::Value* blocks = b_.CreateSub(first(b_.CreateNSWAdd(member, I64(1))), begin);

  llvm::SmallVector<llvm::Value*, 16> arguments;
  llvm::Value* own = b_.CreateInBoundsGEP(b_.getInt8Ty(), parameter, I64(table.WordsOffset()));
  own = b_.CreateInBoundsGEP(b_.getInt64Ty(), own, b_.CreateNSWMul(member, I64(words)));
  for (uint32_t k = 0; k < words; ++k) {
    llvm::Value* word = b_.CreateLoad(b_.getInt64Ty(), b_.CreateInBoundsGEP(b_.getInt64Ty(), own, I64(k)));
    if (k < static_cast<uint32_t>(kernel_.buffers_size())) {
      // A pointer from memory says nothing of its address space, by which loads and stores are chosen.
      word = b_.CreateIntToPtr(word, b_.getPtrTy(kGlobalMemory));
      word = b_.CreateAddrSpaceCast(word, b_.getPtrTy());
    }
    arguments.push_back(word);
  }
  arguments.push_back(b_.CreateZExt(b_.CreateSub(block, begin), b_.getInt64Ty()));
  arguments.push_back(b_.CreateZExt(blocks, b_.getInt64Ty()));
  b_.CreateCall(function_, arguments);
  b_.CreateRetVoid();
  return entry;
}

}  // namespace kiln
