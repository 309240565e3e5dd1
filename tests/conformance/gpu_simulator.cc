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
#include "compiler/schedule/thread_schedule.h"
#include "compiler/support/member_table.h"
#include "compiler/support/status_macros.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/IR/IntrinsicsNVPTX.h"
#include "llvm/IR/ReplaceConstant.h"
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
constexpr unsigned kShared = 3;  // address space

// Where threads wait for each other.
struct Meeting {
  uint32_t size = 0;
  uint32_t arrived = 0;
  uint32_t site = 0;        // of those that have arrived
  uint64_t generation = 0;  // meetings that took place
};

constexpr uint32_t kFragmentWords = 6;  // of a matrix instruction's factors: four and two

struct Warp {
  Meeting meeting;
  uint32_t words[2][kWarp] = {};  // that lanes show each other, by the meeting's parity
  uint32_t fragments[2][kWarp][kFragmentWords] = {};
};

struct Thread {
  jmp_buf place;  // where it goes on; a switch by jumps costs no system call
  bool begun = false;
  const Meeting* waits = nullptr;
  uint64_t generation = 0;  // of what it waits for
  bool ended = false;
};

// One block in work, or the `cluster` blocks of a cluster.
class Block {
 public:
  using Entry = void (*)(void** buffers, const int64_t* symbols);

  Block(Entry entry, uint32_t threads, uint32_t cluster, size_t shared_bytes)
      : entry_(entry),
        threads_of_block_(threads),
        cluster_(cluster),
        threads_(size_t{threads} * cluster),
        warps_((threads * cluster + kWarp - 1) / kWarp),
        stacks_(Stacks(size_t{threads} * cluster)),
        shared_bytes_(shared_bytes),
        shared_(shared_bytes * cluster) {}

  // From block `index` on.
  absl::Status Run(uint32_t index, uint32_t blocks, void** buffers, const int64_t* symbols,
                   std::mt19937_64& random) {
    index_ = index;
    blocks_ = blocks;
    buffers_ = buffers;
    symbols_ = symbols;
    failure_.clear();
    of_cluster_ = {};
    of_cluster_.size = static_cast<uint32_t>(threads_.size());
    of_blocks_.assign(cluster_, {});
    for (Meeting& meeting : of_blocks_) meeting.size = threads_of_block_;
    std::fill(shared_.begin(), shared_.end(), '\xA5');
    for (size_t w = 0; w < warps_.size(); ++w) {
      warps_[w] = {};
      warps_[w].meeting.size = std::min<uint32_t>(kWarp, of_cluster_.size - static_cast<uint32_t>(w) * kWarp);
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

  uint32_t thread() const { return current_ % threads_of_block_; }
  uint32_t index() const { return index_ + current_ / threads_of_block_; }
  uint32_t blocks() const { return blocks_; }
  void Barrier(uint32_t site) { Meet(of_blocks_[current_ / threads_of_block_], site); }
  void ClusterBarrier(uint32_t site) { Meet(of_cluster_, site); }
  // Shared memory of a block of the cluster, and the place there of what lies at `own` in this block's.
  char* shared() { return shared_.data() + current_ / threads_of_block_ * shared_bytes_; }
  char* SharedOf(const char* own, uint32_t rank) {
    if (rank >= cluster_) Fail("a block that the cluster has not");
    return shared_.data() + rank * shared_bytes_ + (own - shared());
  }
  void WarpBarrier(uint32_t site) { Meet(warps_[current_ / kWarp].meeting, site); }

  uint32_t Shuffle(uint32_t word, uint32_t from, uint32_t site) {
    Warp& warp = warps_[current_ / kWarp];
    uint32_t* words = warp.words[warp.meeting.generation % 2];
    words[current_ % kWarp] = word;
    Meet(warp.meeting, site);
    return words[from % kWarp];
  }

  using Fragments = uint32_t[kWarp][kFragmentWords];
  // What all lanes have; until the warp's next meeting but one.
  const Fragments& Show(const uint32_t* fragment, uint32_t site) {
    Warp& warp = warps_[current_ / kWarp];
    Fragments& all = warp.fragments[warp.meeting.generation % 2];
    std::copy_n(fragment, kFragmentWords, all[current_ % kWarp]);
    Meet(warp.meeting, site);
    return all;
  }

  // Ends the run; the thread that fails never returns.
  [[noreturn]] void Fail(std::string why) {
    failure_ = std::move(why);
    Leave();
  }

  static Block& Current() { return *current_block; }

 private:
  // Kept for the next kernel: their pages are expensive.
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
  const uint32_t threads_of_block_, cluster_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<std::unique_ptr<char[]>>& stacks_;
  const size_t shared_bytes_;  // of a block of a cluster; others have the code's own variables
  std::vector<char> shared_;
  Meeting of_cluster_;
  std::vector<Meeting> of_blocks_;
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
uint32_t BlockRow() { return 0; }
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
float ReciprocalApproximate(float x) {
  const float y = 1 / x;
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
void ClusterArrival() {}
void ClusterBarrier(uint32_t site) { Block::Current().ClusterBarrier(site); }
char* SharedMemory() { return Block::Current().shared(); }
char* SharedMemoryOf(char* own, uint32_t rank) { return Block::Current().SharedOf(own, rank); }
uint32_t Permute(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  uint32_t result = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    result |= static_cast<uint32_t>(bytes >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
  }
  return result;
}
uint32_t RoundToTf32(float x) {  // ties away from zero
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return (bits & 0x7f800000) == 0x7f800000 ? bits : (bits + 0x1000) & ~uint32_t{0x1fff};
}

// sums += 16 x depth times depth x 8, as a warp's lanes have them in fragments.
void MultiplyFragments(const uint32_t* fragment, float* sums, uint32_t site, uint32_t terms_of_word,
                       float (*term)(uint32_t word, uint32_t number)) {
  const uint32_t lane = Block::Current().thread() % kWarp;
  const Block::Fragments& all = Block::Current().Show(fragment, site);
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
    for (uint32_t word = 0; word < 8; ++word) {
      const uint32_t x = all[row % 8 * 4 + word % 4][row / 8 + word / 4 * 2];
      const uint32_t y = all[column * 4 + word % 4][4 + word / 4];
      for (uint32_t k = 0; k < terms_of_word; ++k) sums[i] += term(x, k) * term(y, k);
    }
  }
}
float WordAsFloat(uint32_t word, uint32_t) {
  const uint32_t tf32 = word & ~uint32_t{0x1fff};  // what the instruction sees
  float x;
  std::memcpy(&x, &tf32, sizeof x);
  return x;
}
float HalfOf(uint32_t word, uint32_t k) { return FromF16(static_cast<uint16_t>(word >> (16 * k))); }
float BHalfOf(uint32_t word, uint32_t k) { return FromBF16(static_cast<uint16_t>(word >> (16 * k))); }
void MultiplyTf32(const uint32_t* fragment, float* sums, uint32_t site) {
  MultiplyFragments(fragment, sums, site, 1, WordAsFloat);
}
void MultiplyF16(const uint32_t* fragment, float* sums, uint32_t site) {
  MultiplyFragments(fragment, sums, site, 2, HalfOf);
}
void MultiplyBF16(const uint32_t* fragment, float* sums, uint32_t site) {
  MultiplyFragments(fragment, sums, site, 2, BHalfOf);
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
  bool meets;              // takes its place in the code as a last argument
  bool fragments = false;  // takes the factors' words and the sums in memory
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
      {nvvm_read_ptx_sreg_ctaid_y, "kiln_sim_block_row", AddressOf(BlockRow), false},
      {nvvm_read_ptx_sreg_nctaid_x, "kiln_sim_blocks", AddressOf(BlockCount), false},
      {nvvm_barrier_cta_sync_aligned_all, "kiln_sim_barrier", AddressOf(Barrier), true},
      {nvvm_bar_warp_sync, "kiln_sim_warp_barrier", AddressOf(WarpBarrier), true},
      {nvvm_shfl_sync_down_i32, "kiln_sim_shuffle_down", AddressOf(ShuffleDown), true},
      {nvvm_shfl_sync_idx_i32, "kiln_sim_shuffle_index", AddressOf(ShuffleIndex), true},
      {nvvm_ex2_approx_ftz, "kiln_sim_exp2", AddressOf(Exp2Approximate), false},
      {nvvm_rcp_approx_ftz_f, "kiln_sim_reciprocal", AddressOf(ReciprocalApproximate), false},
      {nvvm_fma_rn_sat_f, "kiln_sim_fma_saturated", AddressOf(FmaSaturated), false},
      {nvvm_fma_rm_f, "kiln_sim_fma_down", AddressOf(FmaDown), false},
      {nvvm_mulhi_ui, "kiln_sim_high_product", AddressOf(HighProduct), false},
      {nvvm_barrier_cluster_arrive, "kiln_sim_cluster_arrival", AddressOf(ClusterArrival), false},
      {nvvm_barrier_cluster_arrive_relaxed, "kiln_sim_cluster_arrival", AddressOf(ClusterArrival), false},
      {nvvm_barrier_cluster_wait, "kiln_sim_cluster_barrier", AddressOf(ClusterBarrier), true},
      {nvvm_mapa_shared_cluster, "kiln_sim_shared_of", AddressOf(SharedMemoryOf), false},
      {nvvm_prmt, "kiln_sim_permute", AddressOf(Permute), false},
      {nvvm_f2tf32_rna, "kiln_sim_tf32", AddressOf(RoundToTf32), false},
      {nvvm_mma_m16n8k8_row_col_tf32, "kiln_sim_mma_tf32", AddressOf(MultiplyTf32), true, true},
      {nvvm_mma_m16n8k16_row_col_f32_f32, "kiln_sim_mma_f16", AddressOf(MultiplyF16), true, true},
      {nvvm_mma_m16n8k16_row_col_bf16, "kiln_sim_mma_bf16", AddressOf(MultiplyBF16), true, true},
      {trap, "kiln_sim_trap", AddressOf(Trap), false},
  };
  return *all;
}

// A matrix instruction: its ten operands go through memory, as a structure that C++ and LLVM return alike
// would.
llvm::Value* CallWithFragments(llvm::CallInst* call, const char* name, uint32_t site, llvm::Module& module) {
  llvm::IRBuilder<> b(call);
  auto* type = llvm::FunctionType::get(b.getVoidTy(), {b.getPtrTy(), b.getPtrTy(), b.getInt32Ty()}, false);
  llvm::FunctionCallee stand_in = module.getOrInsertFunction(name, type);
  llvm::cast<llvm::Function>(stand_in.getCallee())->setConvergent();
  llvm::IRBuilder<> entry(&call->getFunction()->getEntryBlock().front());
  llvm::Value* words = entry.CreateAlloca(llvm::ArrayType::get(b.getInt32Ty(), kFragmentWords));
  llvm::Value* sums = entry.CreateAlloca(llvm::ArrayType::get(b.getFloatTy(), 4));
  for (uint32_t i = 0; i < call->arg_size(); ++i) {
    const bool factor = i < kFragmentWords;
    b.CreateStore(call->getArgOperand(i), b.CreateConstGEP1_32(b.getInt32Ty(), factor ? words : sums,
                                                               factor ? i : i - kFragmentWords));
  }
  b.CreateCall(stand_in, {words, sums, b.getInt32(site)});
  llvm::Value* result = llvm::PoisonValue::get(call->getType());
  for (uint32_t i = 0; i < 4; ++i) {
    result = b.CreateInsertValue(
        result, b.CreateLoad(b.getFloatTy(), b.CreateConstGEP1_32(b.getFloatTy(), sums, i)), i);
  }
  return result;
}

// Shared variables of a cluster's blocks: where the running thread's block has them. Returns their bytes.
size_t MoveSharedVariables(llvm::Module& module) {
  size_t bytes = 0;
  for (llvm::GlobalVariable& shared : llvm::make_early_inc_range(module.globals())) {
    if (shared.isConstant() || shared.getAddressSpace() != kShared) continue;
    llvm::convertUsersOfConstantsToInstructions({&shared});
    llvm::FunctionCallee memory =
        module.getOrInsertFunction("kiln_sim_shared", llvm::FunctionType::get(shared.getType(), {}, false));
    llvm::DenseMap<llvm::Function*, llvm::Value*> addresses;  // in each that knows the variable
    for (llvm::Use& use : llvm::make_early_inc_range(shared.uses())) {
      llvm::Function* function = llvm::cast<llvm::Instruction>(use.getUser())->getFunction();
      llvm::Value*& address = addresses[function];
      if (address == nullptr) {
        llvm::IRBuilder<> b(&function->getEntryBlock().front());
        address = b.CreateConstGEP1_64(b.getInt8Ty(), b.CreateCall(memory, {}), bytes);
      }
      use.set(address);
    }
    bytes += module.getDataLayout().getTypeAllocSize(shared.getValueType());
    shared.eraseFromParent();
  }
  return bytes;
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
    if (found->fragments) {
      for (llvm::User* user : llvm::make_early_inc_range(function.users())) {
        auto* call = llvm::cast<llvm::CallInst>(user);
        call->replaceAllUsesWith(CallWithFragments(call, found->name, ++site, module));
        call->eraseFromParent();
      }
      continue;
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
  // A table of members is a pointer to one here.
  for (llvm::Argument& argument : kernel->args()) argument.removeAttr(llvm::Attribute::ByVal);
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
  std::unique_ptr<llvm::LLVMContext> context = std::make_unique<llvm::LLVMContext>();
  std::unique_ptr<llvm::Module> module;  // until it is translated, as its context
  std::unique_ptr<llvm::orc::LLJIT> jit;
  GpuImage launch;
  uint32_t units = 0;
  uint32_t cluster = 1;
  bool takes_all_blocks = false;  // a launch has as many as its units fill
  bool barriers = true;
  size_t shared_bytes = 0;
  Block::Entry entry = nullptr;
};

SimulatedKernel::SimulatedKernel() : code_(std::make_unique<Code>()) {
  code_->module = std::make_unique<llvm::Module>("kernel", *code_->context);
  const llvm::Triple gpu(kTriple);
  code_->module->setTargetTriple(gpu);
  code_->module->setDataLayout(gpu.computeDataLayout());
}
SimulatedKernel::~SimulatedKernel() = default;

int64_t SimulatedKernel::units() const { return code_->units; }

absl::StatusOr<std::unique_ptr<SimulatedKernel>> SimulatedKernel::Create(const v1::Kernel& kernel,
                                                                         bool barriers) {
  std::unique_ptr<SimulatedKernel> result(new SimulatedKernel);
  result->code_->barriers = barriers;
  VectorTarget target;
  target.triple = kTriple;
  target.lanes = 1;
  v1::Kernel scheduled = kernel;
  KILN_RETURN_IF_ERROR(ScheduleThreads(target.machine, &scheduled));
  {
    ThreadEmitter emitter(scheduled, target, result->code_->module.get());
    KILN_RETURN_IF_ERROR(emitter.EmitKernel());
    result->code_->launch = emitter.Launch();
  }
  const v1::ThreadSchedule& threads = scheduled.schedule().threads();
  result->code_->takes_all_blocks = threads.has_gemm();
  if (threads.has_gemm()) result->code_->cluster = threads.gemm().blocks();
  KILN_RETURN_IF_ERROR(result->Translate());
  return result;
}

absl::StatusOr<std::unique_ptr<SimulatedKernel>> SimulatedKernel::Create(const v1::Gemm& gemm,
                                                                         const v1::SkinnySchedule& schedule) {
  std::unique_ptr<SimulatedKernel> result(new SimulatedKernel);
  KILN_ASSIGN_OR_RETURN(const SkinnyLaunch launch,
                        EmitSkinnyGemm(gemm, schedule, result->code_->module.get()));
  result->code_->launch = launch.image;
  result->code_->units = launch.units;
  result->code_->cluster = schedule.blocks();
  KILN_RETURN_IF_ERROR(result->Translate());
  return result;
}

absl::Status SimulatedKernel::Translate() {
  static const bool initialized =
      !llvm::InitializeNativeTarget() && !llvm::InitializeNativeTargetAsmPrinter();
  if (!initialized) return absl::InternalError("simulator: no native target");
  llvm::Module* module = code_->module.get();
  if (code_->cluster > 1) code_->shared_bytes = MoveSharedVariables(*module);
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
    const bool passes = !code_->barriers && replacement.function == AddressOf(Barrier);
    define(replacement.name, passes ? AddressOf(NoBarrier) : replacement.function);
  }
  define("kiln_sim_shared", AddressOf(SharedMemory));
  define("__truncsfbf2", AddressOf(FloatToBF16));
  define("__truncdfbf2", AddressOf(DoubleToBF16));
  if (llvm::Error error = (*jit)->getMainJITDylib().define(llvm::orc::absoluteSymbols(std::move(symbols))))
    return Failed(std::move(error));
  if (llvm::Error error = (*jit)->addIRModule({std::move(code_->module), std::move(code_->context)}))
    return Failed(std::move(error));
  auto thunk = (*jit)->lookup(kThunkName);
  if (!thunk) return Failed(thunk.takeError());
  code_->entry = thunk->toPtr<Block::Entry>();
  code_->jit = std::move(*jit);
  return absl::OkStatus();
}

absl::Status SimulatedKernel::Run(const std::vector<void*>& buffers, const std::vector<int64_t>& symbols,
                                  int64_t units, int64_t blocks_max, std::mt19937_64& random) const {
  const int64_t per_block = code_->launch.points_per_block;
  const int64_t all = (units + per_block - 1) / per_block;
  const auto blocks = static_cast<uint32_t>(code_->takes_all_blocks ? all : std::min(blocks_max, all));
  std::vector<void*> pointers = buffers;
  Block block(code_->entry, code_->launch.threads, code_->cluster, code_->shared_bytes);
  for (uint32_t index = 0; index < blocks; index += code_->cluster) {
    KILN_RETURN_IF_ERROR(block.Run(index, blocks, pointers.data(), symbols.data(), random));
  }
  return absl::OkStatus();
}

absl::Status SimulatedKernel::RunMembers(const std::vector<SimulatedMember>& members,
                                         const std::vector<int64_t>& symbols, int64_t blocks_max,
                                         std::mt19937_64& random) const {
  const GpuImage& launch = code_->launch;
  MemberTableWriter table({launch.members, launch.buffers + launch.symbols});
  for (const SimulatedMember& member : members) {
    const int64_t blocks = (member.units + launch.points_per_block - 1) / launch.points_per_block;
    table.Add(static_cast<uint32_t>(std::min(blocks_max, blocks)), member.buffers.data(), launch.buffers,
              symbols.data());
  }
  void* parameter = table.Finish();
  Block block(code_->entry, launch.threads, code_->cluster, code_->shared_bytes);
  for (uint32_t index = 0; index < table.blocks(); ++index) {
    KILN_RETURN_IF_ERROR(block.Run(index, table.blocks(), &parameter, nullptr, random));
  }
  return absl::OkStatus();
}

}  // namespace kiln::testing
