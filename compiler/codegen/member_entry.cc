#include "compiler/codegen/member_entry.h"

#include "compiler/image/gpu_image.h"
#include "compiler/support/member_table.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/IntrinsicsNVPTX.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/MathExtras.h"

namespace kiln {
namespace {

constexpr unsigned kGlobalMemory = 1;  // NVPTX's number of the address space

using Builder = llvm::IRBuilder<>;

llvm::Function* NewEntry(llvm::Function* body, llvm::ArrayRef<llvm::Type*> parameters) {
  auto* type = llvm::FunctionType::get(llvm::Type::getVoidTy(body->getContext()), parameters, false);
  return llvm::Function::Create(type, llvm::GlobalValue::ExternalLinkage, kGpuEntryName, body->getParent());
}

struct Member {
  llvm::Value* number;
  llvm::Value* block;   // this one, of the launch, as i32
  llvm::Value* begin;   // the member's first, as i32
  llvm::Value* blocks;  // how many it has, as i32
};

// The last member that begins at or before this block; those without blocks begin where the next one does, or
// at the end.
Member MemberOfBlock(const MemberTable& table, llvm::Value* parameter, Builder* b) {
  const auto first = [&](llvm::Value* member) {
    return b->CreateLoad(b->getInt32Ty(), b->CreateInBoundsGEP(b->getInt32Ty(), parameter, member));
  };
  llvm::Value* block = b->CreateIntrinsic(b->getInt32Ty(), llvm::Intrinsic::nvvm_read_ptx_sreg_ctaid_x,
                                          llvm::ArrayRef<llvm::Value*>{});
  llvm::Value* end = b->getInt64(table.members);
  llvm::Value* member = b->getInt64(0);
  for (uint64_t step = llvm::bit_ceil(uint64_t{table.members}) / 2; step > 0; step /= 2) {
    llvm::Value* next = b->CreateNSWAdd(member, b->getInt64(step));
    llvm::Value* exists = b->CreateICmpSLT(next, end);
    llvm::Value* begins = b->CreateICmpULE(first(b->CreateSelect(exists, next, end)), block);
    member = b->CreateSelect(b->CreateAnd(exists, begins), next, member, "member");
  }
  llvm::Value* begin = first(member);
  llvm::Value* blocks = b->CreateSub(first(b->CreateNSWAdd(member, b->getInt64(1))), begin);
  return {member, block, begin, blocks};
}

}  // namespace

llvm::Function* AddPlainEntry(llvm::Function* body) {
  llvm::Function* entry = NewEntry(body, body->getFunctionType()->params());
  Builder b(llvm::BasicBlock::Create(body->getContext(), "entry", entry));
  llvm::SmallVector<llvm::Value*, 16> arguments;
  for (llvm::Argument& argument : entry->args()) arguments.push_back(&argument);
  b.CreateCall(body, arguments);
  b.CreateRetVoid();
  return entry;
}

llvm::Function* AddMemberEntry(const v1::Kernel& kernel, llvm::Function* body) {
  llvm::LLVMContext& context = body->getContext();
  const auto buffers = static_cast<uint32_t>(kernel.buffers_size());
  const MemberTable table{kernel.schedule().members(), buffers + kernel.symbol_count()};
  llvm::Function* entry = NewEntry(body, {llvm::PointerType::get(context, 0)});
  Builder b(llvm::BasicBlock::Create(context, "entry", entry));
  auto* bytes = llvm::ArrayType::get(b.getInt8Ty(), table.Bytes());
  entry->addParamAttr(0, llvm::Attribute::getWithByValType(context, bytes));
  entry->addParamAttr(0, llvm::Attribute::getWithAlignment(context, llvm::Align(8)));
  llvm::Value* parameter = entry->getArg(0);
  const Member member = MemberOfBlock(table, parameter, &b);

  llvm::SmallVector<llvm::Value*, 16> arguments;
  llvm::Value* own = b.CreateInBoundsGEP(b.getInt8Ty(), parameter, b.getInt64(table.WordsOffset()));
  own = b.CreateInBoundsGEP(b.getInt64Ty(), own, b.CreateNSWMul(member.number, b.getInt64(table.words)));
  for (uint32_t k = 0; k < table.words; ++k) {
    llvm::Value* word = b.CreateLoad(b.getInt64Ty(), b.CreateInBoundsGEP(b.getInt64Ty(), own, b.getInt64(k)));
    if (k < buffers) {
      // A pointer from memory says nothing of its address space, by which loads and stores are chosen.
      word = b.CreateIntToPtr(word, b.getPtrTy(kGlobalMemory));
      word = b.CreateAddrSpaceCast(word, b.getPtrTy());
    }
    arguments.push_back(word);
  }
  arguments.push_back(b.CreateZExt(b.CreateSub(member.block, member.begin), b.getInt64Ty()));
  arguments.push_back(b.CreateZExt(member.blocks, b.getInt64Ty()));
  b.CreateCall(body, arguments);
  b.CreateRetVoid();
  return entry;
}

}  // namespace kiln
