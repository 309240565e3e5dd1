// Emits a loop kernel for a GPU: the lanes of the schedule are threads. Shares everything below the loops
// (indices, loads, arithmetic, math) with the CPU's KernelEmitter, with few lanes.
//
//   VECTOR_INNER_LAST   a block takes one point of the outer domain at a time; its threads share the last
//                       inner loop and combine their partial reductions: a warp's by shuffles, the warps'
//                       through shared memory. Of many short rows a block has several, each a warp's.
//                       Where rows are summed down their columns as well, a block takes a strip of them
//   otherwise           a thread takes one point of the outer domain and runs all inner loops itself; or,
//                       where points are few and reductions long, several threads of a block share the
//                       longest loop of a point and combine by shuffles and through shared memory: a block
//                       has columns of neighbouring points and rows of threads; or, where loads run along
//                       another outer loop than the last, a block takes a square of points
//
// Where all accesses run along the scheduled loop, a thread's turn is a short vector of it, so that its
// loads and stores are of 16 bytes; of fewer where rows are known to start off such addresses, and then of
// neighbours by neighbouring threads, several turns in a row. Whether addresses are aligned is decided on the
// device, once a point or once for all where that is enough; the order of combining is the same either way.
// Turns of a known number are unrolled, and what a kernel only reads is read once: later stages find it in
// registers.
//
// Strips are the schedule's chunks of rows. A sum down the columns is an accumulating store to elements of
// its strip's own, `[row // chunk, column]`: its threads keep it in registers from the strip's first row to
// its last.
//
// Other accumulating stores must happen in program order within a point, so a block shares a kernel that has
// one only where a point meets each element once (an embedding's gradient: a row of it for each token); where
// the kernel does not read the buffer again they are reductions in memory, which a thread does not wait for.
// After a failing index check or integer division the kernel traps at its end, as a device
// assertion of torch's does.
//
// A kernel whose schedule has members takes them by one parameter, a MemberTable, in which each block finds
// the member that it works for.
//
// The numbers of it (threads, rows of them, turns, ...) are a ThreadSchedule: the kernel's own where it has
// one, which is refused with INVALID_ARGUMENT where the kernel does not allow it; otherwise one is chosen.
//
// thread_emitter.cc has the shape of a kernel, member_entry.cc the entry of one with members,
// thread_choice.cc who does what, thread_schedule.cc what else could be chosen, thread_combine.cc how threads
// combine, thread_tile.cc transposed access, thread_strip.cc strips, thread_softmax.cc the sum of a softmax.
#pragma once

#include "compiler/codegen/kernel_emitter.h"
#include "compiler/image/gpu_image.h"

namespace kiln {

class ThreadEmitter : public KernelEmitter {
 public:
  ThreadEmitter(const v1::Kernel& kernel, const VectorTarget& target, llvm::Module* module);

  // Adds the kernel kGpuEntryName to the module. `Emit` of the base makes the device function it calls.
  absl::Status EmitKernel();

  // After EmitKernel.
  GpuImage Launch() const;  // without code
  v1::ThreadSchedule Chosen() const;

  // Instead of EmitKernel: how this class would share the kernel among threads, and a few other ways that it
  // could and that may be faster. None of a kernel that it refuses.
  std::vector<v1::ThreadSchedule> Schedules();

 private:
  static constexpr unsigned kWarp = 32;
  static constexpr unsigned kThreads = 256;
  static constexpr unsigned kThreadsMax = 1024;  // of a long row, or where there are few points
  static constexpr unsigned kColumnsMin = 8;     // 32 bytes of F32: what memory moves at least
  static constexpr unsigned kTileThreads = 256;
  static constexpr int64_t kTileMin = 32;
  static constexpr int64_t kTileMax = 64;
  static constexpr int64_t kUsualRow = 4096;   // where a length is a symbol
  static constexpr int64_t kAccessBytes = 16;  // the widest access of a thread
  static constexpr int64_t kTurns =
      4;  // of a thread in a row, before the block has more threads: combining costs too
  static constexpr int64_t kUnrolledTurns = 8;           // whose loads are in flight at the same time
  static constexpr int64_t kLoopMax = int64_t{1} << 30;  // numbers that 32 bits keep
  static bool IsAccess(const v1::LoopOp& op);            // a load or a store
  static bool HasStore(const v1::Stage& stage);
  static bool HasAccumulatingStore(const v1::Kernel& kernel);
  // Does the stage load nothing that it stores? Then threads may all run it, and one of them store.
  static bool StoresApart(const v1::Stage& stage);

  // Does every accumulating store meet an element at most once a point, whatever a point's loops are shared
  // by?
  bool AccumulatesOnceAPoint() const;
  bool IsUniform(uint32_t expr) const;  // over the inner loops, as far as it depends on other ops
  bool MeetsElementsOnce(const StageInfo& info, uint32_t index) const;

  // thread_strip.cc
  struct StripSum {
    const StageInfo* info;
    const v1::LoopOp* op;
    std::vector<llvm::AllocaInst*> slots;  // by a thread's turn
    llvm::Value* shared = nullptr;         // where the warps of a block have rows each
  };
  using StripBody = absl::FunctionRef<void(const StripSum& sum, llvm::AllocaInst* slot, llvm::Value* pointer,
                                           llvm::Align align, llvm::Value* element)>;
  std::optional<int64_t> StripStride(uint32_t index) const;
  bool IsStripSum(const v1::LoopOp& op) const;
  void FindStripSums();
  bool StripsFit();
  void EmitStrips(llvm::Value* rows);
  void EmitStrip(llvm::Value* begin, llvm::Value* end);
  void CombineStrip(llvm::Value* begin, llvm::Value* warp);
  void ForStripSums(llvm::Value* begin, StripBody body);  // all turns of this thread
  void EmitStore(const v1::LoopOp& op) override;

  // thread_softmax.cc
  struct SoftmaxSum {
    size_t largest;  // stages
    size_t sum;
    uint32_t value;  // an op of the first
  };
  bool BeginsAlike(const StageInfo& first, const StageInfo& second) const;
  void FindSoftmaxSum();
  bool SoftmaxSumFits() const;
  void EmitSoftmaxSum();
  void AddToSoftmaxSum(llvm::Value* first_turn, int64_t turns, llvm::AllocaInst* largest,
                       llvm::AllocaInst* sum);
  llvm::Value* SoftmaxOrigin(llvm::Value* largest);
  llvm::Value* ExpOf(llvm::Value* v);

  unsigned PointsPerBlock() const;
  void UseSchedule() override;
  void ChooseSchedule();
  void ShareRows();  // of threads that share a point
  void EmitEntry() override;
  // member_entry.cc: the kernel of a launch with several members. Each block finds its own.
  llvm::Function* EmitMemberEntry();
  llvm::Function* EmitPlainEntry();
  void EmitUnits() override;
  void EmitStages() override;
  void VectorLoop(uint32_t variable, llvm::Value* lo, llvm::Value* hi, unsigned unroll, Body body) override;
  unsigned Unroll(const StageInfo&) const override { return 1; }
  llvm::Align VectorAlign(const v1::LoopOp& op) const override;
  void CombineThreads(const Accumulator& accumulator, v1::DType kept, llvm::Value** value,
                      llvm::Value** position) override;
  int64_t ThreadsOf(const StageInfo& info) const override;
  void EmitInnerFrom(const StageInfo& info, uint32_t level) override;
  void InnerLoop(const StageInfo& info, uint32_t level, absl::FunctionRef<void(llvm::Value*)> body) override;
  void ScalarStore(const v1::LoopOp& op, llvm::Value* index, llvm::Value* value) override;
  llvm::Instruction* Annotate(llvm::Instruction* access, uint32_t buffer) override;
  void FailWhere(llvm::Value* bad, int32_t code, uint32_t op, llvm::Value* value, llvm::Value* bound,
                 bool is_unsigned) override;

  llvm::Value* Special(llvm::Intrinsic::ID id);  // a thread or block number, as i64
  llvm::Value* Block();                          // its number among those of the launch, or of the member
  llvm::Value* Blocks();                         // how many these are
  llvm::Value* Thread();                         // its number among those that share a point, or in its block
  void Barrier();                                // of those threads
  void BlockBarrier();
  void Choose(llvm::Value* condition, Body then, Body otherwise);
  uint32_t VectorVariable(const StageInfo& info) const;
  unsigned LanesFor(const StageInfo& info);  // 1: some access does not run along the stage's vector loop
  unsigned LanesAlongOuter();
  // Of a load or store along the vector loop: how far from an aligned address its vectors can lie.
  enum class Offsets { kAligned, kMisaligned, kUnknown };
  Offsets OffsetsOf(const StageInfo& info, const v1::LoopOp& op, unsigned lanes) const;
  std::optional<int64_t> ConstantTerm(uint32_t expr) const;
  void ChooseTurns();
  void ChooseRounds();
  int64_t PointsEstimate(int64_t most) const;
  // Columns of points, see above.
  struct SharedLoop {
    int64_t longest = 0;     // of the points' loops
    int64_t slot_bytes = 0;  // of shared memory that a thread needs
  };
  std::optional<SharedLoop> FindSharedLoop() const;  // nothing where only one thread may take a point
  void ChooseRows();
  uint32_t SharedLevel(const StageInfo& info) const;  // the longest inner loop
  // thread_schedule.cc
  bool Use(const v1::ThreadSchedule& schedule);  // false: the kernel does not allow it
  bool UseForSharedPoints(const v1::ThreadSchedule& schedule);
  bool UseForOwnPoints(const v1::ThreadSchedule& schedule);
  bool RowsFit(unsigned rows, unsigned threads) const;
  std::vector<v1::ThreadSchedule> Alternatives(const v1::ThreadSchedule& own) const;
  // thread_tile.cc
  bool TileFits(int64_t tile) const;  // that the kernel has transposed loads for
  int64_t TileBytes(int64_t tile) const;
  bool ChooseSharedTile();
  void FindTransposedLoads(uint32_t loop);
  void EmitSharedTiles();
  void EmitSharedTile(llvm::Value* across, llvm::Value* along);  // from there on, in the two loops
  void EmitPoints();
  void EmitPointsOfThreads(llvm::Value* points, llvm::ArrayRef<llvm::Value*> extents);
  void EmitColumns(llvm::Value* points);
  void CombineRows(const Accumulator& accumulator, v1::DType kept, llvm::Value** value,
                   llvm::Value** position);
  // Can a block's threads share all inner loops of the stage as if they were one?
  bool SharesAllLoops(const StageInfo& info) const;
  int64_t Turns(const StageInfo& info) const;  // vectors of the loops that a block shares; at least 1
  int64_t LongestTurns() const;                // of any stage
  // So many, or somewhat fewer, of which each has as many turns of a row.
  unsigned WithEqualTurns(unsigned threads) const;
  unsigned UnrolledTurns(const StageInfo& info) const;
  void EmitTurns(llvm::Value* thread, llvm::Value* count, unsigned at_once,
                 absl::FunctionRef<void(llvm::Value*)> turn);
  bool IsRead(uint32_t buffer) const;
  // The loop's body that many times in a row, where its accesses are in flight at once.
  void UnrollLoop(llvm::Instruction* back, unsigned times);
  // Are the addresses aligned of all vectors at the current point?
  llvm::Value* IsAligned(llvm::ArrayRef<const StageInfo*> stages);
  llvm::Value* IsRowAligned();
  // The code twice: for aligned vectors where `aligned` holds, and for any address.
  void EmitByAlignment(llvm::Value* aligned, Body emit);
  void EmitStagesInTurn();
  void IfFirstRow(Body body);  // of threads that share a point
  void SetPoint(llvm::Value* number, llvm::ArrayRef<llvm::Value*> extents);
  void EmitPoint(llvm::Value* number, llvm::ArrayRef<llvm::Value*> extents);
  llvm::Value* Shuffle(llvm::Intrinsic::ID id, llvm::Value* value, unsigned lane);
  llvm::Value* SharedSlots(llvm::Type* type, unsigned count, const char* name);

  bool block_shares_point_ = false;
  unsigned threads_ = 0;  // of a block; of a point, where a block has several points of a warp each
  unsigned warps_ = 1;    // such points
  unsigned turns_ = 1;    // points, or vectors of them, that a thread takes in a row
  unsigned rounds_ = 1;   // of its loop over points that a thread should have at least
  int passes_ = 0;        // over a row that a block shares
  unsigned rows_ = 1;     // of threads that share a point's longest loop, where blocks have columns
  unsigned columns_ = 0;
  int64_t tile_ = 0;                  // a block takes a square of so many points a side, if any
  uint32_t tile_loop_ = 0;            // along which its transposed loads run
  llvm::Value* row_ = nullptr;        // of this thread
  llvm::Value* active_ = nullptr;     // does its column exist?
  bool in_first_row_ = false;         // in code of IfFirstRow
  bool aligned_ = false;              // in code that runs where IsAligned
  bool aligned_by_buffers_ = false;   // that is known of all points
  bool aligned_by_row_ = false;       // that is known of all stages of a point
  std::vector<StripSum> strip_sums_;  // empty: blocks take no strips
  std::optional<SoftmaxSum> softmax_sum_;
  unsigned turn_ = 0;  // of this thread, in EmitTurns, where all turns stand in a row
  llvm::AllocaInst* failed_ = nullptr;
};

}  // namespace kiln
