#include "compiler/codegen/codegen_cpu.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/codegen/image_builder.h"
#include "compiler/codegen/kernel_emitter.h"
#include "compiler/codegen/optimizer.h"
#include "compiler/codegen/target_operations.h"
#include "compiler/ir/dtype_groups.h"
#include "compiler/ir/print.h"
#include "compiler/ir/verify_kernel.h"
#include "compiler/schedule/vector_schedule.h"
#include "compiler/support/status_macros.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Transforms/Utils/Cloning.h"

namespace kiln {
namespace {

std::string IrText(const llvm::Module& module) {
  std::string text;
  llvm::raw_string_ostream out(text);
  module.print(out, nullptr);
  return text;
}

class CpuBackend : public CodegenBackend {
 public:
  CpuBackend(VectorTarget target, std::unique_ptr<Optimizer> optimizer)
      : target_(std::move(target)), optimizer_(std::move(optimizer)) {}

  absl::string_view name() const override { return OperationsOf(target_.instructions).name; }

  absl::Status Supports(const v1::Kernel& kernel) const override {
    for (const v1::KernelBuffer& buffer : kernel.buffers()) {
      if (!ir::IsStorable(buffer.dtype())) return Unsupported("buffer", buffer.dtype());
    }
    for (const v1::Stage& stage : kernel.stages()) {
      for (const v1::LoopOp& op : stage.ops()) {
        const LoopOpInfo* info = FindLoopOp(op.op());
        if (info == nullptr) return absl::UnimplementedError(absl::StrCat("unsupported: loop op ", op.op()));
        if (!ir::IsStorable(op.dtype())) return Unsupported(info->name, op.dtype());
      }
    }
    return absl::OkStatus();
  }

  std::vector<v1::KernelSchedule> Schedules(const v1::Kernel& kernel) const override {
    const KernelFacts facts(kernel);
    if (kernel.schedule().has_threads() || !facts.ExpressionsFit()) return {};
    std::vector<v1::KernelSchedule> schedules;
    for (v1::VectorSchedule& vectors : VectorSchedules(facts, target_)) {
      schedules.push_back(kernel.schedule());
      *schedules.back().mutable_vectors() = std::move(vectors);
    }
    return schedules;
  }

  absl::StatusOr<EmittedObject> Emit(const v1::Kernel& kernel, const v1::KernelNotes& notes,
                                     bool want_listing) override {
    KILN_RETURN_IF_ERROR(VerifyKernel(kernel));
    KILN_RETURN_IF_ERROR(Supports(kernel));
    v1::Kernel scheduled = kernel;
    KILN_RETURN_IF_ERROR(ScheduleVectors(target_, &scheduled));
    return EmitScheduled(scheduled, notes, want_listing);
  }

 private:
  static absl::Status Unsupported(absl::string_view what, v1::DType dtype) {
    return absl::UnimplementedError(absl::StrCat("unsupported: ", what, " of dtype ", v1::DType_Name(dtype)));
  }

  absl::StatusOr<EmittedObject> EmitScheduled(const v1::Kernel& kernel, const v1::KernelNotes& notes,
                                              bool want_listing) {
    llvm::LLVMContext context;
    llvm::Module module("kernel", context);
    optimizer_->Prepare(&module);
    KernelEmitter emitter(kernel, target_, &module);
    KILN_RETURN_IF_ERROR(emitter.Emit());
    optimizer_->Prepare(&module);
    KILN_RETURN_IF_ERROR(optimizer_->Optimize(&module));
    EmittedObject result;
    result.kind = v1::FLAT_IMAGE;
    if (want_listing) {
      KILN_ASSIGN_OR_RETURN(result.listing, Listing(kernel, notes, module));
    }
    KILN_ASSIGN_OR_RETURN(std::string object, optimizer_->EmitObject(&module));
    KILN_ASSIGN_OR_RETURN(result.bytes, BuildFlatImage(object, kKernelEntryName));
    if (want_listing) result.elf = std::move(object);
    return result;
  }

  absl::StatusOr<std::string> Listing(const v1::Kernel& kernel, const v1::KernelNotes& notes,
                                      const llvm::Module& module) {
    std::string text =
        absl::StrCat("; ---- loop IR\n", PrintKernel(kernel, notes), "\n; ---- LLVM IR\n", IrText(module));
    // Code generation rewrites the module: the assembly is made from a copy.
    std::unique_ptr<llvm::Module> copy = llvm::CloneModule(module);
    KILN_ASSIGN_OR_RETURN(const std::string assembly, optimizer_->EmitAssembly(copy.get()));
    absl::StrAppend(&text, "\n; ---- assembly\n", assembly);
    return text;
  }

  const VectorTarget target_;
  const std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CodegenBackend>> NewCpuBackend(const v1::Target& target) {
  KILN_ASSIGN_OR_RETURN(VectorTarget vector_target, VectorTarget::FromProto(target));
  KILN_ASSIGN_OR_RETURN(auto optimizer, Optimizer::Create(vector_target));
  return std::unique_ptr<CodegenBackend>(new CpuBackend(std::move(vector_target), std::move(optimizer)));
}

}  // namespace kiln
