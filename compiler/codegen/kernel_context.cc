#include "compiler/codegen/kernel_context.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/ir/dtype_groups.h"

namespace kiln {

KernelContext::KernelContext(const v1::Kernel& kernel, const VectorTarget& target, llvm::Module* module)
    : kernel(kernel),
      target(target),
      operations(OperationsOf(target.instructions)),
      facts(kernel),
      module(module),
      b(module->getContext()),
      math(module, operations.float_functions) {
  for (const StageFacts& stage : facts.stages()) stages.push_back({stage, {}});
}

void KernelContext::Fail(absl::Status why) {
  if (status.ok()) status = std::move(why);
}

llvm::Type* KernelContext::ScalarType(v1::DType dtype) {
  switch (ClassOf(dtype)) {
    case DTypeClass::kBool: return b.getInt1Ty();
    case DTypeClass::kUnsigned:
    case DTypeClass::kSigned:
    case DTypeClass::kHalf: return b.getIntNTy(8 * static_cast<unsigned>(ByteSize(dtype)));
    case DTypeClass::kFloat: return dtype == v1::F32 ? b.getFloatTy() : b.getDoubleTy();
    default:
      Fail(absl::UnimplementedError(
          absl::StrCat("unsupported: loop values of dtype ", v1::DType_Name(dtype))));
      return b.getInt32Ty();
  }
}

llvm::Type* KernelContext::MemoryType(v1::DType dtype) {
  return dtype == v1::BOOL ? b.getInt8Ty() : ScalarType(dtype);
}

const StageInfo& KernelContext::StageOf(uint32_t op) const {
  return stages[static_cast<size_t>(&facts.StageOf(op) - facts.stages().data())];
}

}  // namespace kiln
