// How the threads of a device share a kernel's work: lanes of a thread, threads of a block, points of either.
#include <algorithm>
#include <optional>
#include <vector>

#include "compiler/codegen/thread_emitter.h"
#include "compiler/ir/dtypes.h"
#include "compiler/ir/reduce_kinds.h"
#include "compiler/target/cost_model.h"
#include "llvm/Support/MathExtras.h"

namespace kiln {
namespace {

constexpr int64_t kLongRow =
    16384;  // from here on, measured with F32; of BF16 softmax gains, layer norm loses
constexpr unsigned kLanesOfLongRow = 4;
constexpr int64_t kVectorBytes = 32;  // of a buffer with wider elements than another's
constexpr int64_t kRoundsOfRandom = 4;
constexpr unsigned kWarpsOfBlock = 8;
constexpr unsigned kWarpsOfStrip = 4;  // with eight there are too few registers for a strip's sums
constexpr unsigned kThreadsOfLongCode = 128;
constexpr int64_t kBytesOfWarpThread = 128;  // of a strip's row, as F32: longer ones take several warps
constexpr unsigned kRowsMax = 128;           // of threads
constexpr int64_t kTurnsOfRow = 4;           // fewer are not worth the combining
constexpr int64_t kKeptTurns = 16;           // of a row in registers

bool Draws(const std::vector<const v1::LoopOp*>& ops) {
  return std::any_of(ops.begin(), ops.end(), [](const v1::LoopOp* op) {
    return static_cast<LoopOpcode>(op->op()) == LoopOpcode::kRandBits;
  });
}

}  // namespace

bool ThreadEmitter::AccumulatesOnceAPoint() const {
  for (const StageInfo& info : stages_) {
    for (const v1::LoopOp& op : info.stage->ops()) {
      if (static_cast<LoopOpcode>(op.op()) != LoopOpcode::kStore || op.mode() != v1::STORE_ACCUMULATE)
        continue;
      if (IsRead(op.buffer()) || !IsUniform(op.index()) || !MeetsElementsOnce(info, op.index())) return false;
    }
  }
  return true;
}

bool ThreadEmitter::IsUniform(uint32_t expr) const {
  const v1::ExprNode& node = kernel_.exprs(expr);
  if (node.op() != v1::EXPR_INDIRECT) {
    return std::all_of(node.args().begin(), node.args().end(), [&](uint32_t arg) { return IsUniform(arg); });
  }
  const auto op = static_cast<uint32_t>(node.value());
  const auto stage = std::find_if(stages_.begin(), stages_.end(), [&](const StageInfo& info) {
    return op - info.first_op < static_cast<uint32_t>(info.stage->ops_size());
  });
  return stage->stage->inner_size() == 0 || static_cast<LoopOpcode>(ops_[op]->op()) == LoopOpcode::kReduce;
}

// Each loop steps over all that the loops inside of it reach. A stage without loops is run by all threads.
bool ThreadEmitter::MeetsElementsOnce(const StageInfo& info, uint32_t index) const {
  const int loops = info.stage->inner_size();
  int64_t reach = 0;
  for (int k = loops - 1; k >= 0; --k) {
    const std::optional<int64_t> stride = CoefficientOf(index, kernel_.outer_size() + k);
    if (!stride || *stride <= reach) return false;
    if (k == 0) break;
    const std::optional<int64_t> extent = ConstantExpr(info.stage->inner(k));
    if (!extent || *extent > kLoopMax || *stride > kLoopMax) return false;
    reach += *stride * (*extent - 1);
  }
  return loops > 0 && !info.has_scan;
}

unsigned ThreadEmitter::LanesFor(const StageInfo& info) {
  vector_variable_ = VectorVariable(info);
  const auto runs_along = [&](const v1::LoopOp& op) {
    switch (static_cast<LoopOpcode>(op.op())) {
      case LoopOpcode::kScan: return false;
      case LoopOpcode::kIndexExpr: return DependsOnOps(op.index()) || Coefficient(op.index()).has_value();
      case LoopOpcode::kLoad: {
        if (op.args_size() > 0) return false;  // a masked vector is read lane by lane, with branches
        if (DependsOnOps(op.index())) return true;
        const std::optional<int64_t> coefficient = Coefficient(op.index());
        return coefficient == 0 || coefficient == 1;
      }
      case LoopOpcode::kStore:
        return op.args_size() == 1 && (op.mode() != v1::STORE_ACCUMULATE || IsStripSum(op)) &&
               !DependsOnOps(op.index()) && Coefficient(op.index()) == 1;
      default: return true;
    }
  };
  int64_t lanes = kAccessBytes;
  int64_t narrowest = kAccessBytes;
  bool accesses = false;
  for (const v1::LoopOp& op : info.stage->ops()) {
    if (!runs_along(op)) {
      lanes = 1;
      break;
    }
    if (!IsAccess(op)) continue;
    const int64_t bytes = ir::ByteWidth(kernel_.buffers(op.buffer()).dtype());
    lanes = std::min(lanes, kVectorBytes / bytes);
    narrowest = std::min(narrowest, bytes);
    accesses = true;
  }
  if (accesses)
    lanes = std::min(lanes, kAccessBytes / narrowest);  // a stage without any takes what others take
  auto most = static_cast<unsigned>(lanes);
  for (const v1::LoopOp& op : info.stage->ops()) {
    while (most > 1 && IsAccess(op) && OffsetsOf(info, op, most) == Offsets::kMisaligned) most /= 2;
  }
  vector_variable_ = kNoVariable;
  return most;
}

// What an index is where all loop variables are 0.
std::optional<int64_t> ThreadEmitter::ConstantTerm(uint32_t expr) const {
  const v1::ExprNode& node = kernel_.exprs(expr);
  if (node.op() == v1::EXPR_CONST) return node.value();
  if (node.op() == v1::EXPR_VAR) return 0;
  if (node.op() != v1::EXPR_ADD && node.op() != v1::EXPR_MUL) return std::nullopt;
  int64_t term = node.op() == v1::EXPR_ADD ? 0 : 1;
  for (uint32_t arg : node.args()) {
    const std::optional<int64_t> value = ConstantTerm(arg);
    if (!value || *value > kLoopMax || *value < -kLoopMax) return std::nullopt;
    term = node.op() == v1::EXPR_ADD ? term + *value : term * *value;
  }
  return term;
}

ThreadEmitter::Offsets ThreadEmitter::OffsetsOf(const StageInfo& info, const v1::LoopOp& op,
                                                unsigned lanes) const {
  if (DependsOnOps(op.index()) || Coefficient(op.index()) != 1) return Offsets::kAligned;  // tested nowhere
  const int64_t bytes = ir::ByteWidth(kernel_.buffers(op.buffer()).dtype());
  const int64_t unit = std::clamp<int64_t>(kAccessBytes / bytes, 1, lanes);
  std::vector<std::optional<int64_t>> offsets = {ConstantTerm(op.index())};
  const auto variables = static_cast<uint32_t>(kernel_.outer_size() + info.stage->inner_size());
  for (uint32_t variable = 0; variable < variables; ++variable) {
    if (variable != vector_variable_) offsets.push_back(CoefficientOf(op.index(), variable));
  }
  bool known = true;
  for (const std::optional<int64_t>& offset : offsets) {
    if (offset && *offset % unit != 0) return Offsets::kMisaligned;
    known = known && offset;
  }
  return known ? Offsets::kAligned : Offsets::kUnknown;
}

// At most `most`, which it is also where it is not known.
int64_t ThreadEmitter::PointsEstimate(int64_t most) const {
  int64_t points = 1;
  for (uint32_t extent : kernel_.outer()) {
    points = std::min(most, points * std::min(most, ConstantExpr(extent).value_or(most)));
  }
  return points;
}

unsigned ThreadEmitter::LanesAlongOuter() {
  if (kernel_.schedule().vector_dim() != v1::VECTOR_OUTER_LAST || kernel_.outer_size() == 0) return 1;
  const int64_t many = cost::ManyPoints(target_.machine);
  if (PointsEstimate(many) < many) return 1;
  unsigned lanes = kAccessBytes;
  for (const StageInfo& info : stages_) {
    if (info.stage->inner_size() > 0) return 1;
    lanes = std::min(lanes, LanesFor(info));
  }
  vector_variable_ = kernel_.outer_size() - 1;
  aligned_by_buffers_ =
      lanes > 1;  // then all of the loop is emitted twice: of long code only what differs is
  for (const StageInfo& info : stages_) {
    aligned_by_buffers_ = aligned_by_buffers_ && info.cheap;
    for (const v1::LoopOp& op : info.stage->ops()) {
      aligned_by_buffers_ =
          aligned_by_buffers_ && (!IsAccess(op) || OffsetsOf(info, op, lanes) == Offsets::kAligned);
    }
  }
  vector_variable_ = kNoVariable;
  return lanes;
}

// Where a thread's accesses are narrow it takes several points, so that more of them are in flight. What
// computes much for each has fewer threads a block.
void ThreadEmitter::ChooseTurns() {
  bool cheap = true;
  for (const StageInfo& info : stages_) {
    if (info.stage->inner_size() > 0) return;
    cheap = cheap && info.cheap;
  }
  if (!cheap) {
    if (!Draws(ops_)) threads_ = kThreadsOfLongCode;
    return;
  }
  int64_t narrowest = kAccessBytes;
  for (const StageInfo& info : stages_) {
    for (const v1::LoopOp& op : info.stage->ops()) {
      if (!IsAccess(op)) continue;
      const int64_t bytes = ir::ByteWidth(kernel_.buffers(op.buffer()).dtype());
      narrowest = std::min(narrowest, bytes * vector_lanes_);
    }
  }
  const int64_t most = std::clamp<int64_t>(kAccessBytes / narrowest, 1, kUnrolledTurns);
  const int64_t many = 2 * cost::ManyPoints(target_.machine);
  while (turns_ < most && PointsEstimate(many * most) >= many * turns_) turns_ *= 2;
}

// A seed's keys for all rounds of Philox are made once a thread: as long as a device is full, threads take
// several vectors of numbers each.
void ThreadEmitter::ChooseRounds() {
  const int64_t enough = cost::ManyPoints(target_.machine) * kRoundsOfRandom * vector_lanes_ * turns_;
  if (Draws(ops_) && PointsEstimate(enough) >= enough) rounds_ = kRoundsOfRandom;
}

uint32_t ThreadEmitter::SharedLevel(const StageInfo& info) const {
  uint32_t longest = 0;
  int64_t most = -1;
  for (int k = 0; k < info.stage->inner_size(); ++k) {
    const int64_t extent = ConstantExpr(info.stage->inner(k)).value_or(kUsualRow);
    if (extent > most) longest = k;
    most = std::max(most, extent);
  }
  return longest;
}

// What stores once a point is for the first row of threads, which alone knows such a stage's values then: all
// that follow must be of that kind.
std::optional<ThreadEmitter::SharedLoop> ThreadEmitter::FindSharedLoop() const {
  if (kernel_.outer_size() == 0 || HasAccumulatingStore(kernel_)) return std::nullopt;
  SharedLoop loop;
  bool last = false;
  for (const StageInfo& info : stages_) {
    if (info.has_scan) return std::nullopt;
    if (info.stage->inner_size() == 0) {
      last = last || !StoresApart(*info.stage);
      continue;
    }
    if (last) return std::nullopt;
    if (!info.has_reduce) continue;
    const int64_t extent = ConstantExpr(info.stage->inner(SharedLevel(info))).value_or(kUsualRow);
    loop.longest = std::max(loop.longest, extent);
    for (const v1::LoopOp& op : info.stage->ops()) {
      if (static_cast<LoopOpcode>(op.op()) != LoopOpcode::kReduce) continue;
      loop.slot_bytes += IsArgReduce(static_cast<v1::ReduceKind>(op.mode())) ? 16 : 8;
    }
  }
  return loop;
}

bool ThreadEmitter::RowsFit(unsigned rows, unsigned threads) const {
  const std::optional<SharedLoop> loop = FindSharedLoop();
  return loop && rows <= kRowsMax && threads <= kThreadsMax && loop->longest >= rows * kTurnsOfRow &&
         loop->slot_bytes * threads <= target_.machine.gpu.shared_bytes_of_block;
}

// Rows of threads until the device is full or a thread has little left to do.
void ThreadEmitter::ChooseRows() {
  const int64_t many = cost::ManyPoints(target_.machine);
  const int64_t points = PointsEstimate(many);
  unsigned columns = kWarp;
  while (columns > kColumnsMin && points / columns < target_.machine.gpu.multiprocessors) columns /= 2;
  unsigned rows = 1;
  while (points * rows < many && RowsFit(2 * rows, 2 * rows * columns)) rows *= 2;
  if (rows == 1) return;
  rows_ = rows;
  columns_ = RowsFit(rows, kThreads) ? std::max(columns, kThreads / rows) : columns;
  threads_ = rows_ * columns_;
}

// The kernel's own schedule, or what seems best.
void ThreadEmitter::UseSchedule() {
  ChooseSchedule();
  if (kernel_.schedule().has_threads() && !Use(kernel_.schedule().threads())) {
    Fail(absl::InvalidArgumentError("the kernel does not allow this schedule of threads"));
  }
}

// A short row gets fewer threads, down to a warp. A long one that several stages read gets more, so that
// fewer rows are in work and the device's cache holds them from one stage to the next.
void ThreadEmitter::ChooseSchedule() {
  block_shares_point_ = kernel_.schedule().vector_dim() == v1::VECTOR_INNER_LAST && AccumulatesOnceAPoint();
  if (!block_shares_point_) {
    vector_lanes_ = LanesAlongOuter();
    if (vector_lanes_ == 1 && !ChooseSharedTile()) ChooseRows();
    if (tile_ == 0 && rows_ == 1) {
      ChooseTurns();
      ChooseRounds();
    }
    return;
  }
  FindStripSums();
  FindSoftmaxSum();
  ShareRows();
  if (strip_sums_.empty() ? !softmax_sum_ || SoftmaxSumFits() : StripsFit()) return;
  strip_sums_.clear();
  softmax_sum_.reset();
  ShareRows();
}

void ThreadEmitter::ShareRows() {
  warps_ = 1;
  passes_ = 0;
  unsigned lanes = kAccessBytes;
  for (const StageInfo& info : stages_) {
    if (info.stage->inner_size() == 0) continue;
    ++passes_;
    lanes = std::min(lanes, LanesFor(info));
  }
  vector_lanes_ = lanes;
  const int64_t vectors = LongestTurns();
  aligned_by_row_ = lanes > 1;
  for (const StageInfo& info : stages_) {
    if (info.stage->inner_size() == 0) continue;
    aligned_by_row_ = aligned_by_row_ && (info.stage->inner_size() == 1 || SharesAllLoops(info));
  }
  if (!strip_sums_.empty() && vectors * lanes * 4 <= int64_t{kWarp} * kBytesOfWarpThread) {
    threads_ = kWarp;
    warps_ = kWarpsOfStrip;
    return;
  }
  const bool few = PointsEstimate(cost::ManyPoints(target_.machine)) <= cost::FewPoints(target_.machine);
  const bool read_again = !softmax_sum_ && passes_ > 1;
  const bool of_words = lanes <= kLanesOfLongRow;
  int64_t most = few || (read_again && of_words && vectors * lanes >= kLongRow) ? kThreadsMax : kThreads;
  while (read_again && most < kThreadsMax && vectors > most * kKeptTurns) most *= 2;  // in registers then
  const int64_t turns = few ? 1 : kTurns;
  const int64_t wanted = (vectors + turns - 1) / turns;
  threads_ = static_cast<unsigned>(std::clamp(
      static_cast<int64_t>(llvm::PowerOf2Ceil(static_cast<uint64_t>(wanted))), int64_t{kWarp}, most));
  const int64_t many_rows = cost::ManyRows(target_.machine);
  if (threads_ == kWarp && PointsEstimate(many_rows) == many_rows) warps_ = kWarpsOfBlock;
  threads_ = WithEqualTurns(threads_);
}

// Then no turn is conditional.
unsigned ThreadEmitter::WithEqualTurns(unsigned threads) const {
  const int64_t vectors = LongestTurns();
  for (unsigned fewer = threads; 2 * fewer > threads; fewer -= kWarp) {
    if (vectors % fewer == 0) return fewer;
  }
  return threads;
}

int64_t ThreadEmitter::ThreadsOf(const StageInfo& info) const {
  if (rows_ > 1 && info.stage->inner_size() > 0) {
    const int64_t extent = ConstantExpr(info.stage->inner(SharedLevel(info))).value_or(1);
    return std::clamp<int64_t>(extent, 1, rows_);
  }
  if (!block_shares_point_ || info.has_scan || info.stage->inner_size() == 0) return 1;
  if (!ConstantExpr(info.stage->inner(info.stage->inner_size() - 1))) return 1;
  return std::clamp<int64_t>(Turns(info), 1, threads_);
}

bool ThreadEmitter::SharesAllLoops(const StageInfo& info) const {
  const int loops = info.stage->inner_size();
  if (!block_shares_point_ || info.has_scan || loops < 2) return false;
  int64_t total = 1;
  for (uint32_t extent : info.stage->inner()) {
    const std::optional<int64_t> known = ConstantExpr(extent);
    if (!known || *known < 1 || *known > kLoopMax / total) return false;
    total *= *known;
  }
  if (vector_lanes_ == 1) return true;
  if (*ConstantExpr(info.stage->inner(loops - 1)) % vector_lanes_ != 0) return false;
  // A vector that is aligned in the first turn has to be so in every other.
  const uint32_t first = kernel_.outer_size();
  for (const v1::LoopOp& op : info.stage->ops()) {
    if (!IsAccess(op) || DependsOnOps(op.index()) || CoefficientOf(op.index(), first + loops - 1) != 1)
      continue;
    for (int k = 0; k < loops - 1; ++k) {
      const std::optional<int64_t> stride = CoefficientOf(op.index(), first + k);
      if (!stride || *stride % vector_lanes_ != 0) return false;
    }
  }
  return true;
}

int64_t ThreadEmitter::Turns(const StageInfo& info) const {
  const int loops = info.stage->inner_size();
  int64_t elements = ConstantExpr(info.stage->inner(loops - 1)).value_or(kUsualRow);
  if (SharesAllLoops(info)) {
    for (int k = 0; k < loops - 1; ++k) elements *= *ConstantExpr(info.stage->inner(k));
  }
  return std::max<int64_t>(1, elements / vector_lanes_);
}

int64_t ThreadEmitter::LongestTurns() const {
  int64_t longest = 1;
  for (const StageInfo& info : stages_) {
    if (info.stage->inner_size() > 0) longest = std::max(longest, Turns(info));
  }
  return longest;
}

// As many as there are, and as a thread has registers for what they load.
unsigned ThreadEmitter::UnrolledTurns(const StageInfo& info) const {
  const int64_t turns = (Turns(info) + threads_ - 1) / threads_;
  int64_t words = 0;  // of 32 bits that a turn loads
  for (const v1::LoopOp& op : info.stage->ops()) {
    if (static_cast<LoopOpcode>(op.op()) != LoopOpcode::kLoad) continue;
    words += (ir::ByteWidth(kernel_.buffers(op.buffer()).dtype()) * vector_lanes_ + 3) / 4;
  }
  const GpuMachine& gpu = target_.machine.gpu;
  const int64_t registers =
      std::min(gpu.registers_of_thread_max, gpu.registers_of_multiprocessor / threads_) / 2;
  // A row that several stages read is kept whole.
  const int64_t most = passes_ > 1 && turns <= kKeptTurns ? turns : info.cheap ? kUnrolledTurns : kTurns;
  return static_cast<unsigned>(
      std::clamp<int64_t>(registers / std::max<int64_t>(words, 1), 1, std::min(turns, most)));
}

}  // namespace kiln
