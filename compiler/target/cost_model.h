// Whether something is worth it on a machine: every such question of the compiler, in the order of a graph's
// way. Thresholds are shares of what the machine has, or the same on each; none depends on a hint, a core
// count or a measurement, so that one row of the table gives one code. What max-autotune measured is handed
// to the last question, which only chooses between two plans.
//
// Who asks has already seen that what it asks for is legal. Threads: pure functions. Errors: none; a size
// that is not known is nullopt, and each question says what it takes that for.
#pragma once

#include <cstdint>
#include <optional>

#include "compiler/ir/ops.h"
#include "compiler/target/machine.h"

namespace kiln::cost {

// ---- passes: library calls beside kernels

// oneDNN for gemms of F32 on a CPU: where the caller's torch has it, and MKL leaves AVX-512 unused.
bool PaysOnednn(const Machine& machine);
// Such a gemm, of so many multiplications.
bool PaysOnednnGemm(const Machine& machine, double multiplications);

// A convolution whose window is one point.
struct Conv1x1 {
  std::optional<int64_t> from, to;               // channels
  std::optional<int64_t> images, rows, columns;  // of the result
};
// As a gemm: by oneDNN where that pays, else by MKL. Unknown images are taken to be small where the
// weights are few; weights are known, or it does not pay.
bool PaysConv1x1AsGemm(const Machine& machine, const Conv1x1& sizes);

// A convolution on a CPU with channels last, by the bytes of its weights and of both images. Unknown weights:
// no. Unknown images: only where the weights are small.
bool PaysChannelsLast(const Machine& machine, std::optional<int64_t> weights, std::optional<int64_t> from,
                      std::optional<int64_t> to);

// A gemm of 16-bit numbers on a GPU that is padded to 16 bytes.
bool PaysPaddedGemm(const Machine& machine, int64_t rows, int64_t columns, int64_t summed);

// A gemm of so many rows, and so many bytes of the other factor, on a GPU as a kernel of our own, which fuses
// with what follows. `f32`: its factors are.
bool PaysGemmKernel(const Machine& machine, int64_t rows, int64_t weight_bytes, bool f32);

// A depthwise convolution on a GPU as a kernel, its window unrolled, by the window's sizes.
bool PaysUnrolledWindow(const Machine& machine, int64_t rows, int64_t columns);

// A depthwise convolution's gradients on a CPU, channels last: of how many channels a call of oneDNN's is, by
// the window's sizes. All of them where that pays.
int64_t ChannelsOfGradients(int64_t channels, std::optional<int64_t> rows, std::optional<int64_t> columns);

// The gradient of bilinear upsampling as gemms with matrices of all weights, by the positions of a row or
// a column. Unknown: yes.
bool PaysWeightMatrix(std::optional<int64_t> positions);

// F32 attention on a GPU as two gemms and a softmax. `matrices`: images times heads.
bool PaysSplitAttention(const Machine& machine, int64_t matrices, int64_t queries, int64_t keys);

// Mean and variance of so many F32 numbers in one pass, on a CPU: fewer stay in the cache between two. Those
// are summed in F64, the others in F32 (docs/numerics.md).
bool PaysOnePassMoments(const Machine& machine, int64_t elements);
// Likewise of each channel, blocks of so many points first.
bool PaysMomentsByBlocks(const Machine& machine, int64_t elements, int64_t block);

// ---- lowering: values that are computed again or stored

struct BodyCost {
  size_t ops = 0;
  size_t loads = 0;
  bool heavy = false;  // a loop, or an operator that takes as long as many
};
// Storing a value that `uses` bodies would compute again; `from_memory`: some of them are read from memory
// anyway, by a library for one. What is long is stored however few use it.
bool PaysStoring(const BodyCost& body, uint32_t uses, bool from_memory);
// Storing a value that one loop reads many times a point.
bool PaysStoringBeforeLoop(const BodyCost& body);

// Making a factor of a gemm's kernel where it is read, instead of storing it. `once`: each value is read
// once.
bool PaysMakingFactor(const BodyCost& body, bool once);

// A cat of so many pieces, none of more work than `longest`, that each of so many readers chooses from,
// instead of loops that store them.
bool PaysChoosingPieces(size_t pieces, const BodyCost& longest, uint32_t uses);
// What is padded for a library's call stored in parts, so that no load has a mask.
bool PaysPaddingInParts(bool on_gpu);
// Comparing a value with all boundaries, instead of a library's search. Unknown: no.
bool PaysComparingAll(std::optional<int64_t> boundaries);
// A loop over so many results. Unknown: no. A reduction of such a loop in chunks, which another one combines,
// of so many elements each.
bool LeavesThreadsIdle(std::optional<int64_t> results);
bool PaysSplitSum(int64_t elements_max);
// The gradient of max pooling as a kernel that asks all windows over a point, by their rows and columns.
bool PaysPoolingGradient(bool on_gpu, int64_t rows, int64_t columns);

// ---- scheduling: what shares a kernel

// Of one operator, to compute it again: an addition is 1, what costs nothing beside it 0.
int64_t OperatorCost(LoopOpcode op);
// Where a value waits that may be computed again.
struct Reuse {
  bool on_gpu = false;
  bool stored = false;  // in any case: reading it back is all that is saved
  int64_t bytes = 0;    // of all values
};
// Rematerialising a value of operators of such cost, that reads so many others, instead of reading it back.
bool PaysRematerialising(const Machine& machine, const Reuse& reuse, int64_t operators, int64_t loads);

// One kernel of two that only read the same, so many nodes apart: values between them live longer.
bool PaysFusingReaders(int64_t nodes_apart);
// One kernel of two that only read the same so many bytes, and could be members of one launch.
bool PaysFusingMembers(int64_t bytes);
// One kernel of two layouts, that gathers so many bytes of the one beside those that lie along its loops.
bool PaysGathering(int64_t gathered_bytes, int64_t bytes);
// More kernels of more outer points each, instead of one over `points` with `inner` iterations each.
bool PaysParallelism(const Machine& machine, int64_t points, int64_t inner);
// Bytes of one layout from which on it decides how loops run.
int64_t LayoutBytesMin(const Machine& machine);
// Iterations that one unit of the parallel loop takes at least.
int64_t UnitIterations(const Machine& machine);
// Which of two loops is inside: of an access to so many bytes, for the loop that its stride is smaller along.
int64_t AccessWeight(int64_t bytes, bool store);
// Lanes along a loop of so many iterations; and which of two loops' more: by each access, with its stride
// along the loop. Unknown: a gather.
bool PaysLanes(int64_t iterations);
double LaneMerit(std::optional<int64_t> stride, bool store);
// One launch for so many kernels that are alike.
bool PaysSharedLaunch(size_t kernels);

// A sum down columns in blocks of rows, with a second pass; `rows` are estimated.
bool PaysSplitColumns(const Machine& machine, bool on_gpu, int64_t bytes, int64_t rows);
// Elements from a row to the next, from which on a walk down a column is one.
int64_t ColumnStrideMin(bool on_gpu);
// So many blocks, of so many rows.
bool PaysColumnBlocks(int64_t rows, int64_t blocks);
// Of rows that the same kernel reduces, in strips on a GPU: blocks that a multiprocessor holds, rows of a
// strip, and whether so many strips of so many columns pay.
inline constexpr int64_t kStripBlocksOfMultiprocessor = 2;
int64_t RowsOfStrip(const Machine& machine, int64_t rows);
bool PaysStrips(const Machine& machine, int64_t columns, int64_t strips);

// ---- kernels

// Code of the operator is short and does not branch: worth unrolling and widening.
bool IsCheap(LoopOpcode op);
// Code of the function of F32 at every use, instead of a call.
bool PaysInlining(LoopOpcode op);

// ---- kernels of a CPU

// Bytes of a result from which on its next reader finds it in no cache, whatever else is read and written
// meanwhile; and of an operand from which on it comes from memory.
int64_t NontemporalBytesMin(const Machine& machine);
int64_t FromMemoryBytesMin(const Machine& machine);
// Bytes of an operand from which on it is prefetched: a smaller one stays in the cache.
int64_t PrefetchedBytesMin(const Machine& machine);
// Bytes of a row that stays in the second-level cache beside another of its size; in the first-level cache
// beside what else is walked; and of columns, read alike for all rows, that take their part of the
// first-level cache.
int64_t SecondLevelRowBytesMax(const Machine& machine);
int64_t FirstLevelRowBytesMax(const Machine& machine);
int64_t SharedColumnsBytesMin(const Machine& machine);
// Two reductions of a row of so many elements in one pass about an estimate. `from_memory`: rows come from
// memory, and may go side by side.
bool PaysShiftedReduction(int64_t elements, bool from_memory);
// Rows side by side, one reduced while the results of the one before are made; by more than two passes where
// these compute much. Unknown: no.
bool PaysRowPipeline(std::optional<int64_t> rows, size_t passes, bool computes_much);
// One register of lanes, not several, for a loop of so many iterations: its masked rest is smaller.
bool PaysNarrowVectors(int64_t iterations, int64_t lanes);

// ---- kernels of a GPU. Powers of two, since what they are compared with is.

int64_t ManyPoints(const Machine& machine);         // fewer do not fill the GPU unless each has its thread
int64_t ManyRows(const Machine& machine);           // so many short ones share blocks
int64_t FewPoints(const Machine& machine);          // of so few each is done as fast as it can be
int64_t TilePointsMin(const Machine& machine);      // fewer leave the GPU empty
int64_t LargeTilePoints(const Machine& machine);    // from here on blocks are enough for large tiles
int64_t LargeTileBytesMax(const Machine& machine);  // so that a multiprocessor holds many blocks
// A transposed load by tiles, along a loop of so many iterations.
bool PaysTile(int64_t iterations);
// Elements of a row that a whole block walks, in F32; of BF16 softmax gains from here on, layer norm loses.
int64_t LongRow(const Machine& machine);
// The largest block for such a row that is read again, by so many elements at once.
bool PaysLargestBlock(const Machine& machine, int64_t elements, int64_t lanes);
// Words that a thread of a block of so many loads at once: the other half of its registers computes.
int64_t LoadedWordsMax(const Machine& machine, int64_t threads);
// So many rows of threads that share a loop of so many iterations, and combine what they reduced.
bool PaysSharedLoop(int64_t iterations, int64_t rows);
// Bytes that a kernel moves at least for its schedules to be worth measuring: what takes less waits for its
// launch.
int64_t MeasuredBytesMin(const Machine& machine);

// Sums of so many products each, whose blocks take tiles of them, and share them in clusters.
bool PaysGemmTiles(const Machine& machine, int64_t products);
// A gemm of few rows by one schedule. It only chooses what is worth measuring: fitted to 280 measurements on
// an H200, of whose 21 gemms the best of the first four is within 0.5 % of the best of all in the mean.
struct SkinnyGemm {
  double depth_bytes = 0;  // of a row of the left matrix
  double rows = 0, columns = 0, columns_all = 0;
  double units = 0, blocks = 0, warps = 0, slots = 0, iterations = 0, row_groups = 0, tiles = 0;
};
double Nanoseconds(const Machine& machine, const SkinnyGemm& gemm);

// ---- plans that are compared by measurements

// Of the two copies whose times stand for a GPU's rates: one that costs little but its launch, and one larger
// than any L2 cache.
inline constexpr int64_t kSmallCopyBytes = 4096;
inline constexpr int64_t kLargeCopyBytes = int64_t{256} << 20;
struct CopyTimes {
  double small = 0, large = 0;  // microseconds
};
// What so many launches take that move so many bytes, at the least.
double KernelMicroseconds(const CopyTimes& copies, double launches, double bytes);

}  // namespace kiln::cost
