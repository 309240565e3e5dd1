#include "compiler/codegen/kernel_context.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace kiln {

KernelContext::KernelContext(const v1::Kernel& kernel, const VectorTarget& target, llvm::Module* module)
    : kernel(kernel),
      target(target),
      operations(OperationsOf(target.instructions)),
      facts(kernel),
      module(module),
      on_gpu(module->getTargetTriple().isNVPTX()),
      b(module->getContext()),
      math(module, operations.table_functions) {
  for (const StageFacts& stage : facts.stages()) stages.push_back({stage, {}});
}

void KernelContext::Fail(absl::Status why) {
  if (status.ok()) status = std::move(why);
}

llvm::Type* KernelContext::ScalarType(v1::DType dtype) {
  switch (dtype) {
    case v1::BOOL: return b.getInt1Ty();
    case v1::U8:
    case v1::I8: return b.getInt8Ty();
    case v1::I16:
    case v1::F16:
    case v1::BF16: return b.getInt16Ty();
    case v1::I32: return b.getInt32Ty();
    case v1::I64: return b.getInt64Ty();
    case v1::F32: return b.getFloatTy();
    case v1::F64: return b.getDoubleTy();
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
