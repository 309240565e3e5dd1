#include "compiler/target/cost_model.h"

#include <algorithm>

#include "absl/numeric/bits.h"
#include "compiler/support/glibc.h"

namespace kiln::cost {
namespace {

int64_t PowerOf2Floor(int64_t value) {
  return static_cast<int64_t>(absl::bit_floor(static_cast<uint64_t>(std::max<int64_t>(value, 1))));
}

// Of the whole GPU: so many for each of its multiprocessors.
int64_t OfGpu(const Machine& machine, int64_t of_multiprocessor) {
  return PowerOf2Floor(machine.gpu.multiprocessors * of_multiprocessor);
}

int64_t StripsOfGpu(const Machine& machine) {
  return machine.gpu.multiprocessors * kStripBlocksOfMultiprocessor;
}

// Twice the weights; nullopt where they are not known or too many to count.
std::optional<int64_t> OperationsOfPoint(const Conv1x1& sizes) {
  int64_t operations = 2;
  for (const std::optional<int64_t>& size : {sizes.from, sizes.to}) {
    if (!size || __builtin_mul_overflow(operations, *size, &operations)) return std::nullopt;
  }
  return operations;
}

bool PaysConv1x1ByMkl(const CpuLibraries& prices, const Conv1x1& sizes) {
  const std::optional<int64_t> of_point = OperationsOfPoint(sizes);
  if (!of_point || *of_point > 2 * prices.mkl_conv1x1_weights_max) return false;
  const bool many_weights = *of_point > 2 * prices.mkl_conv1x1_weights_of_unknown_images_max;
  int64_t operations = *of_point;
  for (const std::optional<int64_t>& size : {sizes.images, sizes.rows, sizes.columns}) {
    if (!size && many_weights) return false;
    if (size && __builtin_mul_overflow(operations, *size, &operations)) return false;
  }
  return operations <= prices.mkl_conv1x1_operations_max;
}

bool PaysConv1x1ByOnednn(const CpuLibraries& prices, const Conv1x1& sizes) {
  const std::optional<int64_t> of_point = OperationsOfPoint(sizes);
  if (!of_point) return false;
  if (*of_point >= 2 * prices.onednn_conv1x1_many_weights) return true;
  int64_t operations = *of_point;
  for (const std::optional<int64_t>& size : {sizes.images, sizes.rows, sizes.columns}) {
    if (!size) return true;
    if (__builtin_mul_overflow(operations, *size, &operations)) return false;
  }
  return operations <= prices.onednn_conv1x1_operations_max;
}

bool FitsUnrolled(int64_t points_max, int64_t rows, int64_t columns) {
  return rows > 0 && columns > 0 && rows <= points_max && columns <= points_max / rows;
}

// Without them a block for each tile of columns leaves most of the GPU idle.
bool HasClusters(const Machine& machine) { return machine.gpu.cluster_blocks_max > 1; }

}  // namespace

bool PaysOnednn(const Machine& machine) {
  return machine.cpu_libraries.onednn && machine.cpu_libraries.mkl_leaves_avx512_unused;
}

bool PaysOnednnGemm(const Machine& machine, double multiplications) {
  return PaysOnednn(machine) &&
         multiplications >= static_cast<double>(machine.cpu_libraries.onednn_gemm_multiplications_min);
}

bool PaysConv1x1AsGemm(const Machine& machine, const Conv1x1& sizes) {
  const CpuLibraries& prices = machine.cpu_libraries;
  return PaysOnednn(machine) ? PaysConv1x1ByOnednn(prices, sizes) : PaysConv1x1ByMkl(prices, sizes);
}

bool PaysChannelsLast(const Machine& machine, std::optional<int64_t> weights, std::optional<int64_t> from,
                      std::optional<int64_t> to) {
  if (!weights) return false;
  if (*weights < machine.cpu_libraries.fast_packed_weight_bytes) return true;
  const int64_t ratio = machine.cpu_libraries.image_bytes_per_weight_byte;
  return from && to && *weights < *from / ratio + *to / ratio;
}

bool PaysPaddedGemm(const Machine& machine, int64_t rows, int64_t columns, int64_t summed) {
  const GpuLibraries& prices = machine.gpu_libraries;
  if (std::min({rows, columns, summed}) < prices.padded_gemm_size_min) return false;
  return static_cast<double>(rows) * static_cast<double>(summed) * static_cast<double>(columns) >=
         prices.padded_gemm_multiplications_min;
}

bool PaysGemmKernel(const Machine& machine, int64_t rows, int64_t weight_bytes, bool f32) {
  // TF32 is for the tensor cores, which a kernel of F32 leaves idle.
  if (!HasClusters(machine) || (f32 && machine.gpu_libraries.tf32)) return false;
  const bool cached = weight_bytes <= machine.gpu.second_level_bytes;
  return rows <= (cached ? machine.gpu_libraries.cached_gemm_rows_of_kernel_max
                         : machine.gpu_libraries.gemm_rows_of_kernel_max);
}

bool PaysUnrolledWindow(const Machine& machine, int64_t rows, int64_t columns) {
  return FitsUnrolled(machine.gpu_libraries.unrolled_window_points_max, rows, columns);
}

int64_t ChannelsOfGradients(int64_t channels, std::optional<int64_t> rows, std::optional<int64_t> columns) {
  // oneDNN pads every channel's window to 16 × 16 of them for the weight's gradient.
  constexpr int64_t kPaddedWindows = 16 * 16;
  // Of kMappedBytesMin and more, they would fault in all of their pages at each call: 768 channels of 7 × 7
  // take 13 ms at once, 11 of them for new pages, and 2.8 by five groups. The next group finds the pages that
  // the last one left in the heap.
  constexpr int64_t kPaddedBytesMax = kMappedBytesMin / 4;
  constexpr int64_t kVector = 16;  // channels; a group is whole vectors but for the last
  if (!rows || !columns || *rows < 1 || *columns < 1) return channels;
  if (*rows > kMappedBytesMin / *columns) return channels;
  const int64_t channel_bytes = kPaddedWindows * *rows * *columns * int64_t{sizeof(float)};
  if (channels < kMappedBytesMin / channel_bytes) return channels;
  const int64_t vectors = (channels + kVector - 1) / kVector;
  const int64_t most = std::max<int64_t>(1, kPaddedBytesMax / (kVector * channel_bytes));
  const int64_t groups = (vectors + most - 1) / most;
  return (vectors + groups - 1) / groups * kVector;
}

bool PaysWeightMatrix(std::optional<int64_t> positions) {
  constexpr int64_t kPositionsMax = 1024;  // with more, a gemm is mostly zeros' work
  return positions.value_or(0) <= kPositionsMax;
}

bool PaysSplitAttention(const Machine& machine, int64_t matrices, int64_t queries, int64_t keys) {
  if (keys <= machine.gpu_libraries.attention_keys_at_once || queries <= 0) return false;
  // All scores stay in the second-level cache between the kernels.
  const int64_t scores_max = PowerOf2Floor(machine.gpu.second_level_bytes) / 4;
  if (matrices > scores_max || queries > scores_max || keys > scores_max) return false;
  return matrices * queries <= scores_max / keys;
}

bool PaysOnePassMoments(const Machine& machine, int64_t elements) {
  return elements >= machine.cpu.last_level_bytes / 8 / 4;
}

bool PaysMomentsByBlocks(const Machine& machine, int64_t elements, int64_t block) {
  constexpr int64_t kPointsMin = 8;  // of fewer, the results of blocks are no small part of the image
  return PaysOnePassMoments(machine, elements) && block >= kPointsMin;
}

bool PaysStoring(const BodyCost& body, uint32_t uses, bool from_memory) {
  if (body.loads > 8 || body.ops > 100) return true;
  const bool trivial = body.loads == 0 && body.ops <= 4;
  const bool expensive = body.loads >= 4 || body.ops > 30 || body.heavy;
  return (uses >= 2 && (expensive || (from_memory && !trivial))) || (uses >= 4 && body.loads >= 2);
}

bool PaysStoringBeforeLoop(const BodyCost& body) { return body.heavy || body.loads >= 3 || body.ops > 12; }

bool PaysMakingFactor(const BodyCost& body, bool once) {
  return once ? !body.heavy && body.ops <= 16 : !PaysStoringBeforeLoop(body);
}

bool PaysChoosingPieces(size_t pieces, const BodyCost& longest, uint32_t uses) {
  return pieces <= 4 && !longest.heavy && longest.ops <= 20 && uses <= 2;
}

bool PaysPaddingInParts(bool on_gpu) { return on_gpu; }

bool PaysComparingAll(std::optional<int64_t> boundaries) { return boundaries && *boundaries <= 4096; }

bool LeavesThreadsIdle(std::optional<int64_t> results) { return results && *results <= 16; }

bool PaysSplitSum(int64_t elements_max) { return elements_max > 32768; }

bool PaysPoolingGradient(bool on_gpu, int64_t rows, int64_t columns) {
  constexpr int64_t kWindowsMax = 25;  // in one body, each with two loads
  return on_gpu && FitsUnrolled(kWindowsMax, rows, columns);
}

int64_t OperatorCost(LoopOpcode op) {
  switch (op) {
    case LoopOpcode::kConstant:
    case LoopOpcode::kIndexExpr:
    case LoopOpcode::kCast:
    case LoopOpcode::kBitcast: return 0;
    case LoopOpcode::kDiv:
    case LoopOpcode::kSqrt:
    case LoopOpcode::kRsqrt:
    case LoopOpcode::kReciprocal: return 4;
    case LoopOpcode::kScan:
    case LoopOpcode::kRandBits: return 100;
    default: return InfoOf(op).op_class == LoopOpClass::kFloat && op != LoopOpcode::kFma ? 12 : 1;
  }
}

bool PaysRematerialising(const Machine& machine, const Reuse& reuse, int64_t operators, int64_t loads) {
  if (reuse.stored) return operators <= 1 && loads <= 1;
  // A GPU is bound by memory, and finds what an unrolled stage computed in registers again.
  if (reuse.on_gpu) return operators <= 40 && loads <= 3;
  // Values that no cache holds until all are made are not worth their memory if an exponential gives them
  // again.
  const bool beyond_cache = reuse.bytes >= machine.cpu.last_level_bytes / 2;
  return operators <= (beyond_cache ? 16 : 8) && loads <= 2;
}

bool PaysFusingReaders(int64_t nodes_apart) { return nodes_apart <= 64; }

bool PaysFusingMembers(int64_t bytes) { return bytes > 64; }  // less saves no more than a launch does

bool PaysGathering(int64_t gathered_bytes, int64_t bytes) { return gathered_bytes <= bytes / 32; }

bool PaysParallelism(const Machine& machine, int64_t points, int64_t inner) {
  constexpr int64_t kPointsMin = 16;  // fewer leave threads idle, which only small kernels may
  return points < kPointsMin && points * inner > LayoutBytesMin(machine);
}

int64_t LayoutBytesMin(const Machine& machine) { return 2 * machine.cpu.fork_iterations; }

int64_t UnitIterations(const Machine& machine) { return machine.cpu.fork_iterations; }

int64_t AccessWeight(int64_t bytes, bool store) { return store ? 2 * bytes : bytes; }

bool PaysLanes(int64_t iterations) { return iterations >= 4; }  // shorter loops are not worth them

double LaneMerit(std::optional<int64_t> stride, bool store) {
  if (stride == 1) return 2;
  if (stride == 0) return store ? -4 : 1;
  return -2;
}

bool PaysSharedLaunch(size_t kernels) { return kernels >= 4; }  // fewer save little

bool PaysSplitColumns(const Machine& machine, bool on_gpu, int64_t bytes, int64_t rows) {
  if (!on_gpu) return bytes >= machine.cpu.last_level_bytes / 4;  // what is less stays in the cache
  // Columns alone are too few threads; long ones are too much for a block of rows.
  constexpr int64_t kLongColumn = 2048, kBytes = 16 << 10, kLongColumnsBytes = 4 << 10;
  return bytes >= OfGpu(machine, rows >= kLongColumn ? kLongColumnsBytes : kBytes);
}

int64_t ColumnStrideMin(bool on_gpu) {
  // Closer rows share pages of a CPU, and what neighbours of a GPU's thread read.
  return on_gpu ? 16 : 256;
}

bool PaysColumnBlocks(int64_t rows, int64_t blocks) { return rows >= 16 && blocks >= 4; }

int64_t RowsOfStrip(const Machine& machine, int64_t rows) {
  constexpr int64_t kRowsMin = 8;  // a strip of fewer does not pay for adding up its sums
  const int64_t strips = StripsOfGpu(machine);
  return std::max((rows + strips - 1) / strips, kRowsMin);
}

bool PaysStrips(const Machine& machine, int64_t columns, int64_t strips) {
  constexpr int64_t kColumnsMin = 128;
  // Two sums a column, as the gradients of a norm's weight and bias are, take half of a block's registers.
  const int64_t columns_max = machine.gpu.registers_of_multiprocessor / kStripBlocksOfMultiprocessor / 4;
  return columns >= kColumnsMin && columns <= columns_max && 2 * strips >= StripsOfGpu(machine);
}

bool IsCheap(LoopOpcode op) {
  switch (InfoOf(op).op_class) {
    case LoopOpClass::kRandom: return false;
    case LoopOpClass::kFloat:
      return op == LoopOpcode::kFma || op == LoopOpcode::kDiv || op == LoopOpcode::kSqrt ||
             op == LoopOpcode::kRsqrt || op == LoopOpcode::kReciprocal || op == LoopOpcode::kFloor ||
             op == LoopOpcode::kCeil || op == LoopOpcode::kTrunc || op == LoopOpcode::kRound;
    case LoopOpClass::kArith: return op != LoopOpcode::kPow && !IsIntegerDivision(op);
    default: return op != LoopOpcode::kCheckIndex;
  }
}

bool PaysInlining(LoopOpcode op) {
  // What activations, norms and losses are made of.
  switch (op) {
    case LoopOpcode::kExp:
    case LoopOpcode::kExp2:
    case LoopOpcode::kLog:
    case LoopOpcode::kSin:
    case LoopOpcode::kCos:
    case LoopOpcode::kTanh:
    case LoopOpcode::kErf:
    case LoopOpcode::kSigmoid:
    case LoopOpcode::kOnePlusErf:
    case LoopOpcode::kOnePlusTanh:
    case LoopOpcode::kSoftmaxExp: return true;
    default: return false;
  }
}

int64_t NontemporalBytesMin(const Machine& machine) { return machine.cpu.last_level_bytes; }

int64_t FromMemoryBytesMin(const Machine& machine) { return machine.cpu.last_level_bytes; }

int64_t PrefetchedBytesMin(const Machine& machine) { return machine.cpu.last_level_bytes / 16; }

int64_t SecondLevelRowBytesMax(const Machine& machine) { return machine.cpu.second_level_bytes / 2; }

int64_t FirstLevelRowBytesMax(const Machine& machine) { return machine.cpu.first_level_bytes; }

int64_t SharedColumnsBytesMin(const Machine& machine) { return machine.cpu.first_level_bytes / 4; }

bool PaysShiftedReduction(int64_t elements, bool from_memory) {
  // The estimate takes as long as some ten vectors do, which are hidden where rows of memory go side by side.
  // From the second-level cache one pass takes 0.84 to 0.93 of the time for rows of 1,024, up to 1.3 times as
  // long for 256.
  constexpr int64_t kElementsMin = 1024, kMemoryElementsMin = 256;
  return elements >= (from_memory ? kMemoryElementsMin : kElementsMin);
}

bool PaysRowPipeline(std::optional<int64_t> rows, size_t passes, bool computes_much) {
  // A range of rows takes an iteration more for each pass but the first: few beside the rows of a thread,
  // even where there are many threads.
  constexpr int64_t kRowsMin = 1024;
  return rows.value_or(0) >= kRowsMin && (passes <= 2 || computes_much);
}

bool PaysNarrowVectors(int64_t iterations, int64_t lanes) {
  constexpr int64_t kShortLoop = 128;  // beside more iterations the rest is little
  return iterations < kShortLoop && iterations % lanes != 0;
}

int64_t ManyPoints(const Machine& machine) { return OfGpu(machine, machine.gpu.threads_of_multiprocessor); }

int64_t ManyRows(const Machine& machine) { return ManyPoints(machine) / 16; }

int64_t FewPoints(const Machine& machine) { return ManyPoints(machine) / 256; }

int64_t TilePointsMin(const Machine& machine) { return ManyPoints(machine) / 4; }

int64_t LargeTilePoints(const Machine& machine) { return ManyPoints(machine) * 2; }

bool PaysTile(int64_t iterations) { return iterations >= 16; }  // fewer leave most of a tile empty

int64_t LongRow(const Machine& machine) {
  // As many registers: 16 of each thread of the largest block.
  return machine.gpu.registers_of_multiprocessor / 4;
}

bool PaysLargestBlock(const Machine& machine, int64_t elements, int64_t lanes) {
  constexpr int64_t kLanesMax = 4;  // of F32, not of BF16
  return lanes <= kLanesMax && elements >= LongRow(machine);
}

int64_t LoadedWordsMax(const Machine& machine, int64_t threads) {
  const GpuMachine& gpu = machine.gpu;
  return std::min(gpu.registers_of_thread_max, gpu.registers_of_multiprocessor / threads) / 2;
}

bool PaysSharedLoop(int64_t iterations, int64_t rows) {
  constexpr int64_t kIterationsOfRow = 4;  // fewer are not worth the combining
  return iterations >= rows * kIterationsOfRow;
}

int64_t LargeTileBytesMax(const Machine& machine) { return machine.gpu.shared_bytes_of_block / 2; }

int64_t MeasuredBytesMin(const Machine& machine) {
  return PowerOf2Floor(static_cast<int64_t>(machine.gpu.memory_bytes_per_ns * machine.gpu.launch_ns));
}

bool PaysGemmTiles(const Machine& machine, int64_t products) {
  return HasClusters(machine) && products >= 64;
}

double Nanoseconds(const Machine& machine, const SkinnyGemm& gemm) {
  const SkinnyGemmTimes& times = machine.gpu.skinny_gemm;
  const double of_block = gemm.depth_bytes / gemm.blocks * (gemm.columns + gemm.rows);
  const double blocks = gemm.units / static_cast<double>(machine.gpu.multiprocessors);
  const double at_once = std::max(1.0, blocks);
  const double busy = std::min(1.0, gemm.warps * std::min(at_once, 3.0) / times.busy_warps);
  const double weights = gemm.depth_bytes * gemm.columns_all;
  return std::max(of_block * at_once / machine.gpu.multiprocessor_bytes_per_ns / busy,
                  weights / machine.gpu.memory_bytes_per_ns) +
         (gemm.blocks > 1 ? times.cluster_ns : 0) + times.piece_ns * gemm.slots * gemm.iterations +
         times.fragment_ns * gemm.row_groups * gemm.tiles * gemm.warps * blocks;
}

double KernelMicroseconds(const CopyTimes& copies, double launches, double bytes) {
  // A copy reads and writes.
  return launches * copies.small +
         bytes * std::max(copies.large - copies.small, 0.0) / static_cast<double>(2 * kLargeCopyBytes);
}

}  // namespace kiln::cost
