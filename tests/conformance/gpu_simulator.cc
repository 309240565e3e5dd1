#include "tests/conformance/gpu_simulator.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/codegen/thread_emitter.h"
#include "compiler/ir/half.h"
#include "compiler/support/status_macros.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/IR/IntrinsicsNVPTX.h"
#include "llvm/IR/Verifier.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Support/raw_ostream.h"

namespace kiln::testing {
namespace {

constexpr uint32_t kWarp = 32;
constexpr size_t kStackBytes = size_t{128} << 10;
constexpr char kThunkName[] = "kiln_simulated_thread";
constexpr char kTriple[] = "nvptx64-nvidia-cuda";

// Where threads wait for each other.
struct Meeting {
  uint32_t size = 0;
  uint32_t arrived = 0;
  uint32_t site = 0;        // of those that have arrived
  uint64_t generation = 0;  // meetings that took place
};

struct Warp {
  Meeting meeting;
  uint32_t words[2][kWarp] = {};  // that lanes show each other, by the meeting's parity
};

struct Thread {
  jmp_buf place;  // where it goes on; a switch by jumps costs no system call
  bool begun = false;
  const Meeting* waits = nullptr;
  uint64_t generation = 0;  // of what it waits for
  bool ended = false;
};

// One block in work.
class Block {
 public:
  using Entry = void (*)(void** buffers, const int64_t* symbols);

  Block(Entry entry, uint32_t threads)
      : entry_(entry), threads_(threads), warps_((threads + kWarp - 1) / kWarp), stacks_(Stacks(threads)) {}

  absl::Status Run(uint32_t index, uint32_t blocks, void** buffers, const int64_t* symbols,
                   std::mt19937_64& random) {
    index_ = index;
    blocks_ = blocks;
    buffers_ = buffers;
    symbols_ = symbols;
    failure_.clear();
    all_ = {};
    all_.size = static_cast<uint32_t>(threads_.size());
    for (size_t w = 0; w < warps_.size(); ++w) {
      warps_[w] = {};
      warps_[w].meeting.size = std::min<uint32_t>(kWarp, all_.size - static_cast<uint32_t>(w) * kWarp);
    }
    for (size_t k = 0; k < threads_.size(); ++k) {
      threads_[k].begun = threads_[k].ended = false;
      threads_[k].waits = nullptr;
    }
    current_block = this;
    std::vector<uint32_t> order(threads_.size());
    std::iota(order.begin(), order.end(), 0);
    size_t left = threads_.size();
    while (left > 0 && failure_.empty()) {
      std::shuffle(order.begin(), order.end(), random);
      const size_t before = progress_;
      for (uint32_t k : order) {
        Thread& thread = threads_[k];
        if (thread.ended || (thread.waits != nullptr && thread.waits->generation == thread.generation))
          continue;
        thread.waits = nullptr;
        current_ = k;
        ++progress_;
        Resume(thread);
        left -= thread.ended ? 1 : 0;
        if (!failure_.empty()) break;
      }
      if (progress_ == before) failure_ = "threads wait for others that have ended";
    }
    current_block = nullptr;
    return failure_.empty() ? absl::OkStatus() : absl::FailedPreconditionError(failure_);
  }

  uint32_t thread() const { return current_; }
  uint32_t index() const { return index_; }
  uint32_t blocks() const { return blocks_; }
  void Barrier(uint32_t site) { Meet(all_, site); }
  void WarpBarrier(uint32_t site) { Meet(warps_[current_ / kWarp].meeting, site); }

  uint32_t Shuffle(uint32_t word, uint32_t from, uint32_t site) {
    Warp& warp = warps_[current_ / kWarp];
    uint32_t* words = warp.words[warp.meeting.generation % 2];
    words[current_ % kWarp] = word;
    Meet(warp.meeting, site);
    return words[from % kWarp];
  }

  // Ends the run; the thread that fails never returns.
  [[noreturn]] void Fail(std::string why) {
    failure_ = std::move(why);
    Leave();
  }

  static Block& Current() { return *current_block; }

 private:
  // Kept for the next kernel: their pages are dear.
  static std::vector<std::unique_ptr<char[]>>& Stacks(size_t count) {
    static auto* stacks = new std::vector<std::unique_ptr<char[]>>;
    while (stacks->size() < count) stacks->push_back(std::make_unique_for_overwrite<char[]>(kStackBytes));
    return *stacks;
  }

  static void Start() {
    Block& block = Current();
    block.entry_(block.buffers_, block.symbols_);
    block.threads_[block.current_].ended = true;
    block.Leave();
  }

  void Resume(Thread& thread) {
    if (_setjmp(scheduler_) != 0) return;
    if (thread.begun) _longjmp(thread.place, 1);
    thread.begun = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks_[current_].get();
    context.uc_stack.ss_size = kStackBytes;
    makecontext(&context, &Block::Start, 0);
    setcontext(&context);
  }

  [[noreturn]] void Leave() { _longjmp(scheduler_, 1); }

  void Meet(Meeting& meeting, uint32_t site) {
    if (meeting.arrived == 0) meeting.site = site;
    if (meeting.site != site) Fail("threads meet at different places");
    if (++meeting.arrived == meeting.size) {
      meeting.arrived = 0;
      ++meeting.generation;
      return;
    }
    Thread& thread = threads_[current_];
    thread.waits = &meeting;
    thread.generation = meeting.generation;
    if (_setjmp(thread.place) == 0) Leave();
  }

  static thread_local Block* current_block;

  const Entry entry_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<std::unique_ptr<char[]>>& stacks_;
  Meeting all_;
  jmp_buf scheduler_;
  uint32_t current_ = 0, index_ = 0, blocks_ = 0;
  size_t progress_ = 0;
  void** buffers_ = nullptr;
  const int64_t* symbols_ = nullptr;
  std::string failure_;
};

thread_local Block* Block::current_block = nullptr;

// ---- what stands for a GPU's instructions

uint32_t ThreadIndex() { return Block::Current().thread(); }
uint32_t BlockIndex() { return Block::Current().index(); }
uint32_t BlockCount() { return Block::Current().blocks(); }
void Barrier(uint32_t, uint32_t site) { Block::Current().Barrier(site); }
void NoBarrier(uint32_t, uint32_t) {}
void WarpBarrier(uint32_t, uint32_t site) { Block::Current().WarpBarrier(site); }
uint32_t ShuffleDown(uint32_t, uint32_t word, uint32_t distance, uint32_t, uint32_t site) {
  const uint32_t lane = Block::Current().thread() % kWarp;
  return Block::Current().Shuffle(word, lane + distance < kWarp ? lane + distance : lane, site);
}
uint32_t ShuffleIndex(uint32_t, uint32_t word, uint32_t lane, uint32_t, uint32_t site) {
  return Block::Current().Shuffle(word, lane, site);
}
float Exp2Approximate(float x) {
  const float y = std::exp2(x);
  return std::fpclassify(y) == FP_SUBNORMAL ? 0 : y;
}
float FmaSaturated(float x, float y, float z) {
  const float value = std::fma(x, y, z);
  return std::isnan(value) ? 0 : std::clamp(value, 0.0f, 1.0f);
}
float FmaDown(float x, float y, float z) {
  const double exact = double{x} * y + z;  // of the factors that the exponential has
  const auto value = static_cast<float>(exact);
  return value > exact ? std::nextafter(value, -INFINITY) : value;
}
uint32_t HighProduct(uint32_t x, uint32_t y) { return static_cast<uint32_t>((uint64_t{x} * y) >> 32); }
void Trap() { Block::Current().Fail("the kernel traps"); }

// x86 returns a BF16 in the low bits of a vector register, as it does a float.
float BF16Bits(uint16_t bits) {
  const uint32_t wide = bits;
  float result;
  std::memcpy(&result, &wide, sizeof result);
  return result;
}
float FloatToBF16(float x) { return BF16Bits(ToBF16(x)); }
float DoubleToBF16(double x) { return BF16Bits(ToBF16(static_cast<float>(x))); }

struct Replacement {
  llvm::Intrinsic::ID intrinsic;
  const char* name;
  void* function;
  bool meets;  // takes its place in the code as a last argument
};

template <typename F>
void* AddressOf(F* function) {
  return reinterpret_cast<void*>(function);
}

const std::vector<Replacement>& Replacements() {
  using namespace llvm::Intrinsic;
  static const auto* all = new std::vector<Replacement>{
      {nvvm_read_ptx_sreg_tid_x, "kiln_sim_thread", AddressOf(ThreadIndex), false},
      {nvvm_read_ptx_sreg_ctaid_x, "kiln_sim_block", AddressOf(BlockIndex), false},
      {nvvm_read_ptx_sreg_nctaid_x, "kiln_sim_blocks", AddressOf(BlockCount), false},
      {nvvm_barrier_cta_sync_aligned_all, "kiln_sim_barrier", AddressOf(Barrier), true},
      {nvvm_bar_warp_sync, "kiln_sim_warp_barrier", AddressOf(WarpBarrier), true},
      {nvvm_shfl_sync_down_i32, "kiln_sim_shuffle_down", AddressOf(ShuffleDown), true},
      {nvvm_shfl_sync_idx_i32, "kiln_sim_shuffle_index", AddressOf(ShuffleIndex), true},
      {nvvm_ex2_approx_ftz, "kiln_sim_exp2", AddressOf(Exp2Approximate), false},
      {nvvm_fma_rn_sat_f, "kiln_sim_fma_saturated", AddressOf(FmaSaturated), false},
      {nvvm_fma_rm_f, "kiln_sim_fma_down", AddressOf(FmaDown), false},
      {nvvm_mulhi_ui, "kiln_sim_high_product", AddressOf(HighProduct), false},
      {trap, "kiln_sim_trap", AddressOf(Trap), false},
  };
  return *all;
}

absl::Status ReplaceIntrinsics(llvm::Module& module) {
  uint32_t site = 0;
  for (llvm::Function& function : llvm::make_early_inc_range(module)) {
    if (!function.isIntrinsic() || function.use_empty()) continue;
    const auto found = std::find_if(
        Replacements().begin(), Replacements().end(),
        [&](const Replacement& replacement) { return replacement.intrinsic == function.getIntrinsicID(); });
    if (found == Replacements().end()) {
      if (!function.getName().starts_with("llvm.nvvm.")) continue;
      return absl::UnimplementedError(absl::StrCat("the simulator has no ", std::string(function.getName())));
    }
    llvm::SmallVector<llvm::Type*, 8> types(function.getFunctionType()->params());
    if (found->meets) types.push_back(llvm::Type::getInt32Ty(module.getContext()));
    auto* type = llvm::FunctionType::get(function.getReturnType(), types, false);
    llvm::FunctionCallee stand_in = module.getOrInsertFunction(found->name, type);
    auto* declared = llvm::cast<llvm::Function>(stand_in.getCallee());
    if (found->meets) declared->setConvergent();
    for (llvm::User* user : llvm::make_early_inc_range(function.users())) {
      auto* call = llvm::cast<llvm::CallInst>(user);
      llvm::SmallVector<llvm::Value*, 8> arguments(call->args());
      if (found->meets) arguments.push_back(llvm::ConstantInt::get(types.back(), ++site));
      llvm::IRBuilder<> b(call);
      call->replaceAllUsesWith(b.CreateCall(stand_in, arguments));
      call->eraseFromParent();
    }
  }
  return absl::OkStatus();
}

// void thunk(void** buffers, const int64_t* symbols): the kernel of one thread.
void AddThunk(llvm::Module& module) {
  llvm::Function* kernel = module.getFunction(kGpuEntryName);
  kernel->setCallingConv(llvm::CallingConv::C);
  llvm::LLVMContext& context = module.getContext();
  llvm::IRBuilder<> b(context);
  auto* type = llvm::FunctionType::get(b.getVoidTy(), {b.getPtrTy(), b.getPtrTy()}, false);
  auto* thunk = llvm::Function::Create(type, llvm::GlobalValue::ExternalLinkage, kThunkName, module);
  b.SetInsertPoint(llvm::BasicBlock::Create(context, "entry", thunk));
  llvm::SmallVector<llvm::Value*, 16> arguments;
  uint64_t pointers = 0, numbers = 0;
  for (llvm::Argument& argument : kernel->args()) {
    const bool pointer = argument.getType()->isPointerTy();
    llvm::Type* element = argument.getType();
    arguments.push_back(b.CreateLoad(element, b.CreateConstGEP1_64(element, thunk->getArg(pointer ? 0 : 1),
                                                                   pointer ? pointers++ : numbers++)));
  }
  b.CreateCall(kernel, arguments);
  b.CreateRetVoid();
}

void Optimize(llvm::Module& module, llvm::TargetMachine* machine) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager call_graph;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder builder(machine);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(call_graph);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, call_graph, modules);
  builder.buildPerModuleDefaultPipeline(llvm::OptimizationLevel::O1).run(module, modules);
}

absl::Status Failed(llvm::Error error) {
  return absl::InternalError(absl::StrCat("simulator: ", llvm::toString(std::move(error))));
}

}  // namespace

struct SimulatedKernel::Code {
  std::unique_ptr<llvm::orc::LLJIT> jit;
  GpuImage launch;
  Block::Entry entry = nullptr;
};

SimulatedKernel::SimulatedKernel() : code_(std::make_unique<Code>()) {}
SimulatedKernel::~SimulatedKernel() = default;

absl::StatusOr<std::unique_ptr<SimulatedKernel>> SimulatedKernel::Create(const v1::Kernel& kernel,
                                                                         bool barriers) {
  static const bool initialized =
      !llvm::InitializeNativeTarget() && !llvm::InitializeNativeTargetAsmPrinter();
  if (!initialized) return absl::InternalError("simulator: no native target");
  auto context = std::make_unique<llvm::LLVMContext>();
  auto module = std::make_unique<llvm::Module>("kernel", *context);
  const llvm::Triple gpu(kTriple);
  module->setTargetTriple(gpu);
  module->setDataLayout(gpu.computeDataLayout());
  VectorTarget target;
  target.triple = kTriple;
  target.lanes = 1;
  std::unique_ptr<SimulatedKernel> result(new SimulatedKernel);
  {
    ThreadEmitter emitter(kernel, target, module.get());
    KILN_RETURN_IF_ERROR(emitter.EmitKernel());
    result->code_->launch = emitter.Launch();
  }
  KILN_RETURN_IF_ERROR(ReplaceIntrinsics(*module));
  AddThunk(*module);
  for (llvm::GlobalVariable& shared : module->globals()) {
    // Other threads write it while this one is in a call.
    if (!shared.isConstant()) shared.setLinkage(llvm::GlobalValue::ExternalLinkage);
  }
  auto builder = llvm::orc::JITTargetMachineBuilder::detectHost();
  if (!builder) return Failed(builder.takeError());
  builder->getOptions().AllowFPOpFusion = llvm::FPOpFusion::Strict;
  builder->getFeatures().AddFeature("avx512bf16", false);  // takes subnormal numbers for zero
  auto machine = builder->createTargetMachine();
  if (!machine) return Failed(machine.takeError());
  module->setTargetTriple((*machine)->getTargetTriple());
  module->setDataLayout((*machine)->createDataLayout());
  std::string broken;
  llvm::raw_string_ostream out(broken);
  if (llvm::verifyModule(*module, &out))
    return absl::InternalError(absl::StrCat("simulator: broken IR: ", broken));
  Optimize(*module, machine->get());
  auto jit = llvm::orc::LLJITBuilder().setJITTargetMachineBuilder(std::move(*builder)).create();
  if (!jit) return Failed(jit.takeError());
  llvm::orc::SymbolMap symbols;
  const auto define = [&](const char* name, void* function) {
    symbols[(*jit)->mangleAndIntern(name)] = {llvm::orc::ExecutorAddr::fromPtr(function),
                                              llvm::JITSymbolFlags::Exported};
  };
  for (const Replacement& replacement : Replacements()) {
    const bool passes = !barriers && replacement.function == AddressOf(Barrier);
    define(replacement.name, passes ? AddressOf(NoBarrier) : replacement.function);
  }
  define("__truncsfbf2", AddressOf(FloatToBF16));
  define("__truncdfbf2", AddressOf(DoubleToBF16));
  if (llvm::Error error = (*jit)->getMainJITDylib().define(llvm::orc::absoluteSymbols(std::move(symbols))))
    return Failed(std::move(error));
  if (llvm::Error error = (*jit)->addIRModule({std::move(module), std::move(context)}))
    return Failed(std::move(error));
  auto thunk = (*jit)->lookup(kThunkName);
  if (!thunk) return Failed(thunk.takeError());
  result->code_->entry = thunk->toPtr<Block::Entry>();
  result->code_->jit = std::move(*jit);
  return result;
}

absl::Status SimulatedKernel::Run(const std::vector<void*>& buffers, const std::vector<int64_t>& symbols,
                                  int64_t units, int64_t blocks_max, std::mt19937_64& random) const {
  const int64_t per_block = code_->launch.points_per_block;
  const auto blocks = static_cast<uint32_t>(std::min(blocks_max, (units + per_block - 1) / per_block));
  std::vector<void*> pointers = buffers;
  Block block(code_->entry, code_->launch.threads);
  for (uint32_t index = 0; index < blocks; ++index) {
    KILN_RETURN_IF_ERROR(block.Run(index, blocks, pointers.data(), symbols.data(), random));
  }
  return absl::OkStatus();
}

}  // namespace kiln::testing
