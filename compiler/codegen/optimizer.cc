#include "compiler/codegen/optimizer.h"

#include "absl/strings/str_cat.h"
#include "compiler/codegen/constant_loads.h"
#include "compiler/codegen/target_operations.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/Analysis/TargetLibraryInfo.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Verifier.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/Transforms/IPO/GlobalDCE.h"
#include "llvm/Transforms/InstCombine/InstCombine.h"
#include "llvm/Transforms/Scalar/DCE.h"
#include "llvm/Transforms/Scalar/EarlyCSE.h"
#include "llvm/Transforms/Scalar/LICM.h"
#include "llvm/Transforms/Scalar/LoopPassManager.h"
#include "llvm/Transforms/Scalar/SROA.h"
#include "llvm/Transforms/Scalar/SimplifyCFG.h"

namespace kiln {

struct Optimizer::State {
  VectorTarget target;
  const TargetOperations* operations = nullptr;
  std::unique_ptr<llvm::TargetMachine> machine;
  std::unique_ptr<llvm::TargetLibraryInfoImpl> library;
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager call_graph;
  llvm::ModuleAnalysisManager modules;
  llvm::ModulePassManager pipeline;

  absl::StatusOr<std::string> Generate(llvm::Module* module, llvm::CodeGenFileType type) {
    llvm::SmallString<0> bytes;
    llvm::raw_svector_ostream out(bytes);
    llvm::legacy::PassManager passes;
    passes.add(new llvm::TargetLibraryInfoWrapperPass(*library));
    if (machine->addPassesToEmitFile(passes, out, nullptr, type, /*DisableVerify=*/true)) {
      return Broken("this LLVM emits no such file");
    }
    passes.run(*module);
    return std::string(bytes.data(), bytes.size());
  }

  absl::Status Broken(absl::string_view what) const {
    return absl::InternalError(absl::StrCat(operations->name, ": ", what));
  }
};

Optimizer::Optimizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Optimizer::~Optimizer() = default;

absl::StatusOr<std::unique_ptr<Optimizer>> Optimizer::Create(const VectorTarget& target) {
  auto state = std::make_unique<State>();
  state->target = target;
  state->operations = &OperationsOf(target.instructions);
  state->operations->llvm_target.initialize();
  const llvm::Triple triple(target.triple);
  std::string error;
  const llvm::Target* llvm_target = llvm::TargetRegistry::lookupTarget(triple, error);
  if (llvm_target == nullptr) return state->Broken(error);
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;
  state->machine.reset(llvm_target->createTargetMachine(
      triple, state->operations->llvm_target.cpu, target.features, options, llvm::Reloc::PIC_,
      state->operations->llvm_target.code_model, llvm::CodeGenOptLevel::Default));
  if (state->machine == nullptr) return state->Broken("no target machine");
  state->library = std::make_unique<llvm::TargetLibraryInfoImpl>(triple);
  state->library->disableAllFunctions();

  llvm::PassBuilder builder(state->machine.get());
  state->functions.registerPass([&] { return llvm::TargetLibraryAnalysis(*state->library); });
  builder.registerModuleAnalyses(state->modules);
  builder.registerCGSCCAnalyses(state->call_graph);
  builder.registerFunctionAnalyses(state->functions);
  builder.registerLoopAnalyses(state->loops);
  builder.crossRegisterProxies(state->loops, state->functions, state->call_graph, state->modules);

  // Loops come vectorised and rotated; what is left is to promote slots, fold and hoist.
  llvm::FunctionPassManager passes;
  passes.addPass(llvm::SROAPass(llvm::SROAOptions::ModifyCFG));
  passes.addPass(llvm::EarlyCSEPass());
  passes.addPass(llvm::InstCombinePass());
  passes.addPass(llvm::SimplifyCFGPass());
  llvm::LoopPassManager loop_passes;
  loop_passes.addPass(llvm::LICMPass(llvm::LICMOptions()));
  passes.addPass(llvm::createFunctionToLoopPassAdaptor(std::move(loop_passes), /*UseMemorySSA=*/true));
  passes.addPass(llvm::EarlyCSEPass(/*UseMemorySSA=*/true));
  passes.addPass(llvm::DCEPass());
  if (state->operations->llvm_target.constants_from_memory) passes.addPass(ConstantLoadsPass());
  state->pipeline.addPass(llvm::createModuleToFunctionPassAdaptor(std::move(passes)));
  return std::unique_ptr<Optimizer>(new Optimizer(std::move(state)));
}

void Optimizer::Prepare(llvm::Module* module) const {
  module->setTargetTriple(state_->machine->getTargetTriple());
  module->setDataLayout(state_->machine->createDataLayout());
  const char* width = state_->operations->llvm_target.vector_bits;
  for (llvm::Function& function : *module) {
    if (function.isDeclaration()) continue;
    function.setDSOLocal(true);
    function.addFnAttr(llvm::Attribute::NoUnwind);
    function.addFnAttr("no-builtins");
    function.addFnAttr("no-jump-tables", "true");
    if (width != nullptr) {
      function.addFnAttr("prefer-vector-width", width);
      function.addFnAttr("min-legal-vector-width", width);
    }
    function.addFnAttr("target-cpu", state_->operations->llvm_target.cpu);
    function.addFnAttr("target-features", state_->target.features);
  }
}

absl::Status Optimizer::Optimize(llvm::Module* module) {
  std::string broken;
  llvm::raw_string_ostream out(broken);
  if (llvm::verifyModule(*module, &out)) return state_->Broken(absl::StrCat("broken IR: ", broken));
  state_->pipeline.run(*module, state_->modules);
  state_->loops.clear();
  state_->functions.clear();
  state_->call_graph.clear();
  state_->modules.clear();
  return absl::OkStatus();
}

absl::StatusOr<std::string> Optimizer::EmitObject(llvm::Module* module) {
  return state_->Generate(module, llvm::CodeGenFileType::ObjectFile);
}

absl::StatusOr<std::string> Optimizer::EmitAssembly(llvm::Module* module) {
  return state_->Generate(module, llvm::CodeGenFileType::AssemblyFile);
}

}  // namespace kiln
