#include "compiler/codegen/codegen_nvptx.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "compiler/codegen/ptx_assembler.h"
#include "compiler/codegen/skinny_gemm.h"
#include "compiler/codegen/thread_emitter.h"
#include "compiler/image/gpu_image.h"
#include "compiler/ir/print.h"
#include "compiler/ir/verify_kernel.h"
#include "compiler/schedule/skinny_schedule.h"
#include "compiler/schedule/thread_schedule.h"
#include "compiler/support/status_macros.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/Analysis/TargetLibraryInfo.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Verifier.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Target/TargetMachine.h"

namespace kiln {
namespace {

constexpr char kTriple[] = "nvptx64-nvidia-cuda";
constexpr int kOldestArchitecture = 80;
constexpr int kOldestWithLetter = 90;
constexpr int kNewestArchitecture = 100;
constexpr uint32_t kPtxVersion = 80;  // the first that knows sm_90; a driver of CUDA 12 or later takes it
constexpr uint32_t kBlackwellPtxVersion = 86;  // the first that knows sm_100

// The number in "sm_90", "sm_90a" or "sm_100"; 0 where it has another form. The letter says that the code
// may use what later architectures do not keep.
int Architecture(absl::string_view feature) {
  int number = 0;
  if (!absl::ConsumePrefix(&feature, "sm_")) return 0;
  const bool has_letter = absl::ConsumeSuffix(&feature, "a");
  if (!absl::SimpleAtoi(feature, &number)) return 0;
  return has_letter && number < kOldestWithLetter ? 0 : number;
}

// LLVM numbers calls in comments, by a counter of the process: the text would depend on what was emitted
// before.
std::string WithoutCallNumbers(absl::string_view ptx) {
  constexpr absl::string_view kComment = " // callseq ";
  std::string text;
  for (size_t at = ptx.find(kComment); at != absl::string_view::npos; at = ptx.find(kComment)) {
    absl::StrAppend(&text, ptx.substr(0, at));
    ptx.remove_prefix(std::min(ptx.find('\n', at), ptx.size()));
  }
  absl::StrAppend(&text, ptx);
  return text;
}

void InitializeNvptxOnce() {
  static const bool done = [] {
    LLVMInitializeNVPTXTargetInfo();
    LLVMInitializeNVPTXTarget();
    LLVMInitializeNVPTXTargetMC();
    LLVMInitializeNVPTXAsmPrinter();
    return true;
  }();
  (void)done;
}

class NvptxBackend : public CodegenBackend {
 public:
  NvptxBackend(std::unique_ptr<llvm::TargetMachine> machine, const v1::Target& target)
      : machine_(std::move(machine)) {
    target_.triple = kTriple;
    target_.lanes = 1;
    target_.machine = MachineOf(target);
  }

  absl::string_view name() const override { return "nvptx"; }

  absl::Status Supports(const v1::Kernel& kernel) const override {
    for (const v1::KernelBuffer& buffer : kernel.buffers()) {
      if (buffer.dtype() < v1::BOOL || buffer.dtype() > v1::F64) {
        return absl::UnimplementedError(
            absl::StrCat("unsupported: a buffer of dtype ", v1::DType_Name(buffer.dtype()), " on a GPU"));
      }
    }
    return absl::OkStatus();
  }

  std::vector<v1::KernelSchedule> Schedules(const v1::Kernel& kernel) const override {
    const KernelFacts facts(kernel);
    if (kernel.schedule().has_vectors() || !facts.ExpressionsFit()) return {};
    std::vector<v1::KernelSchedule> schedules;
    for (v1::ThreadSchedule& threads : ThreadSchedules(facts, target_.machine)) {
      schedules.push_back(kernel.schedule());
      *schedules.back().mutable_threads() = std::move(threads);
    }
    return schedules;
  }

  absl::StatusOr<EmittedObject> Emit(const v1::Kernel& kernel, const v1::KernelNotes& notes,
                                     bool want_listing) override {
    KILN_RETURN_IF_ERROR(VerifyKernel(kernel));
    KILN_RETURN_IF_ERROR(Supports(kernel));
    v1::Kernel scheduled = kernel;
    KILN_RETURN_IF_ERROR(ScheduleThreads(target_.machine, &scheduled));
    llvm::LLVMContext context;
    llvm::Module module("kernel", context);
    module.setTargetTriple(machine_->getTargetTriple());
    module.setDataLayout(machine_->createDataLayout());
    ThreadEmitter emitter(scheduled, target_, &module);
    KILN_RETURN_IF_ERROR(emitter.EmitKernel());
    GpuImage image = emitter.Launch();
    KILN_RETURN_IF_ERROR(Translate(&module, &image));
    EmittedObject result;
    result.kind = v1::GPU_IMAGE;
    result.bytes = SerializeGpuImage(image);
    if (want_listing) {
      result.listing =
          absl::StrCat("; ---- loop IR\n", PrintKernel(scheduled, notes), "\n; ---- PTX: ", image.threads,
                       " threads a block, for ", image.points_per_block,
                       image.points_per_block == 1 ? " point\n" : " points\n", image.ptx);
    }
    return result;
  }

  absl::StatusOr<std::vector<EmittedGemm>> EmitGemm(const v1::Gemm& gemm, size_t wanted) override {
    KILN_ASSIGN_OR_RETURN(const std::vector<v1::SkinnySchedule> schedules,
                          SkinnySchedules(gemm, target_.machine, wanted));
    std::vector<EmittedGemm> emitted;
    for (const v1::SkinnySchedule& schedule : schedules) {
      llvm::LLVMContext context;
      llvm::Module module("gemm", context);
      module.setTargetTriple(machine_->getTargetTriple());
      module.setDataLayout(machine_->createDataLayout());
      KILN_ASSIGN_OR_RETURN(SkinnyLaunch launch, EmitSkinnyGemm(gemm, schedule, &module));
      KILN_RETURN_IF_ERROR(Translate(&module, &launch.image));
      emitted.push_back({schedule, SerializeGpuImage(launch.image), launch.units});
    }
    return emitted;
  }

 private:
  // Checked, optimised, as PTX and machine code.
  absl::Status Translate(llvm::Module* module, GpuImage* image) {
    for (llvm::Function& function : *module) {
      if (!function.isDeclaration()) function.addFnAttr(llvm::Attribute::NoUnwind);
    }
    std::string broken;
    llvm::raw_string_ostream out(broken);
    if (llvm::verifyModule(*module, &out))
      return absl::InternalError(absl::StrCat("nvptx: broken IR: ", broken));
    Optimize(module);
    KILN_ASSIGN_OR_RETURN(image->ptx, Assembly(module));
    KILN_RETURN_IF_ERROR(RefuseUndefined(*module));
    absl::StatusOr<std::string> cubin = AssemblePtx(image->ptx, machine_->getTargetCPU().str());
    if (absl::IsUnimplemented(cubin.status())) return absl::OkStatus();  // the driver translates it
    if (!cubin.ok()) return absl::InternalError(absl::StrCat("nvptx: ", cubin.status().message()));
    image->cubin = *std::move(cubin);
    return absl::OkStatus();
  }

  void Optimize(llvm::Module* module) {
    llvm::LoopAnalysisManager loops;
    llvm::FunctionAnalysisManager functions;
    llvm::CGSCCAnalysisManager call_graph;
    llvm::ModuleAnalysisManager modules;
    llvm::PassBuilder builder(machine_.get());
    builder.registerModuleAnalyses(modules);
    builder.registerCGSCCAnalyses(call_graph);
    builder.registerFunctionAnalyses(functions);
    builder.registerLoopAnalyses(loops);
    builder.crossRegisterProxies(loops, functions, call_graph, modules);
    builder.buildPerModuleDefaultPipeline(llvm::OptimizationLevel::O2).run(*module, modules);
  }

  absl::StatusOr<std::string> Assembly(llvm::Module* module) {
    llvm::SmallString<0> text;
    llvm::raw_svector_ostream out(text);
    llvm::legacy::PassManager passes;
    if (machine_->addPassesToEmitFile(passes, out, nullptr, llvm::CodeGenFileType::AssemblyFile, true)) {
      return absl::InternalError("nvptx: this LLVM emits no PTX");
    }
    passes.run(*module);
    return WithoutCallNumbers({text.data(), text.size()});
  }

  // There is no library on the device: what is declared must be the target's own.
  static absl::Status RefuseUndefined(const llvm::Module& module) {
    for (const llvm::Function& function : module) {
      if (function.isDeclaration() && !function.isIntrinsic() && !function.use_empty()) {
        return absl::InternalError(absl::StrCat("nvptx: code calls ", std::string(function.getName())));
      }
    }
    return absl::OkStatus();
  }

  const std::unique_ptr<llvm::TargetMachine> machine_;
  VectorTarget target_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CodegenBackend>> NewNvptxBackend(const v1::Target& target) {
  const int architecture = target.features_size() == 1 ? Architecture(target.features(0)) : 0;
  if (architecture < kOldestArchitecture || architecture > kNewestArchitecture) {
    return absl::UnimplementedError("unsupported: a GPU target needs one feature, sm_80 to sm_100");
  }
  InitializeNvptxOnce();
  const llvm::Triple triple(kTriple);
  std::string error;
  const llvm::Target* llvm_target = llvm::TargetRegistry::lookupTarget(triple, error);
  if (llvm_target == nullptr) return absl::InternalError(absl::StrCat("nvptx: ", error));
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;
  const uint32_t oldest = architecture >= kNewestArchitecture ? kBlackwellPtxVersion : kPtxVersion;
  const uint32_t version = target.ptx_version() == 0 ? oldest : target.ptx_version();
  std::unique_ptr<llvm::TargetMachine> machine(llvm_target->createTargetMachine(
      triple, target.features(0), absl::StrCat("+ptx", version), options, llvm::Reloc::PIC_));
  if (machine == nullptr) return absl::InternalError("nvptx: no target machine");
  return std::unique_ptr<CodegenBackend>(new NvptxBackend(std::move(machine), target));
}

}  // namespace kiln
