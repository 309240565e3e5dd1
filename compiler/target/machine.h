// What the compiler knows of a machine, in one place: caches, vectors and prefetching of a CPU, what a fork
// costs; a GPU's multiprocessors, registers, shared memory and memory rates, what a launch costs; from where
// on the libraries of both are worth their calls.
//
// A machine is a row of a closed table (machine.cc). A target names its row, and only the name is in a key:
// hosts of one kind have equal keys and equal code, whatever cores they have and whatever they measure. A
// target that names no row of its kind is the generic one, so that a client may know more rows than its
// daemon. What torch has of libraries beside, a request says. Which instructions there are is the target's
// features' matter (vector_target.h).
//
// cost_model.h answers questions by these numbers. Threads: any. A Machine is a value; tests make their own.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln {

// How a processor fetches ahead of loops, and what code asks for beside that. Distances are bytes ahead.
struct PrefetchPolicy {
  // The processor itself goes on to the next page, so that a loop need not ask. Rows side by side ask all the
  // same, for one use, and long ones alternate in shorter pieces.
  bool crosses_pages = false;
  // Rows are asked for into the second-level cache, farther ahead than into the first-level one.
  bool rows_into_second_level = false;
  int64_t walk_distance = 6144;              // of a walk from front to back: a page and a half
  int64_t side_by_side_distance_l2 = 12288;  // of rows side by side, by rows_into_second_level
  int64_t row_bytes_min = 2048;              // of a row that is asked for while its neighbour is computed
};

struct CpuMachine {
  int64_t cache_line_bytes = 64;
  int64_t first_level_bytes = 32 << 10;
  int64_t second_level_bytes = 512 << 10;
  int64_t last_level_bytes = 16 << 20;  // that the cores of one cache share
  int64_t vector_lanes = 16;            // of a loop, for every dtype and instruction set
  PrefetchPolicy prefetch;
  int64_t fork_iterations = 16384;  // of an inner loop, that pay for handing them to a thread
};

// What calls of the CPU's libraries, oneDNN and MKL, cost beside kernels of kiln's.
struct CpuLibraries {
  // MKL, which computes ATen's gemms, takes 256 bits where AVX-512 would do, on all CPUs but Intel's. By the
  // row and the instruction set.
  bool mkl_leaves_avx512_unused = false;
  // The caller's torch has oneDNN. No row says so, but the request (Numerics.onednn, which is in its key).
  bool onednn = false;
  int64_t onednn_gemm_multiplications_min = 3 << 20;  // where a call's own 10 µs are paid back
  // A 1×1 convolution is a gemm up to so many operations; above, oneDNN's convolution is faster by
  // more than packing its weights takes. With MKL the two are even at 38 million (MobileNetV2's 16 to 96
  // channels of 112 × 112), at 103 million the gemm takes 1.1 × as long (ResNet-50's 64 to 256 of 56 × 56).
  int64_t mkl_conv1x1_operations_max = 64'000'000;
  int64_t mkl_conv1x1_weights_max = 1 << 18;
  // Of weights, for images of unknown sizes: many weights meet images of hundreds of points and more, as the
  // 1024 to 256 channels of ResNet-50 and of SegFormer's head do, whose gemm takes 1.2 × as long.
  int64_t mkl_conv1x1_weights_of_unknown_images_max = 3 << 16;
  // oneDNN's own gemm is never slower up to this size (an EPYC with AVX-512, two threads: 0.32 to 0.98 of the
  // convolution's time), above it by up to a fifth, unless packing the weights takes long.
  int64_t onednn_conv1x1_operations_max = 256'000'000;
  int64_t onednn_conv1x1_many_weights = 1 << 19;
  // oneDNN packs the weights of a channels-last convolution at each call, fast up to this size.
  int64_t fast_packed_weight_bytes = 1 << 20;
  // Bytes of images that are packed, for a convolution of row-major ones, in the time of one byte of larger
  // weights.
  int64_t image_bytes_per_weight_byte = 13;
};

// Registers of a GPU's thread, words of 32 bits, that code plans with, each for one use. What is left holds
// addresses, and values on their way from one operator to the next.
struct RegisterBudget {
  int64_t row_iterations = 16;  // of a row, that later stages find there, whatever each loads
  int64_t softmax_loads = 16;   // of a softmax's row, in flight
  int64_t strip_sums = 128;
  // Of a gemm of few rows. Where a block is so large that a thread cannot have all registers that it may
  // have, half as many loads are in flight, and sums and a step's loads share what is said last.
  int64_t gemm_sums = 64;
  int64_t gemm_loads = 96;
  int64_t gemm_of_large_block = 80;
};

// Of a gemm of few rows, as an H200's times have them.
struct SkinnyGemmTimes {
  double busy_warps = 8;    // that take all that a multiprocessor gets from beyond its cache
  double cluster_ns = 200;  // of blocks that add up what they summed
  double piece_ns = 15;     // to add one up, a turn
  double fragment_ns = 5;
};

struct GpuMachine {
  int64_t multiprocessors = 132;
  int64_t threads_of_multiprocessor = 2048;
  int64_t registers_of_multiprocessor = 64 << 10;
  int64_t registers_of_thread_max = 255;
  RegisterBudget registers;
  int64_t cluster_blocks_max = 8;  // that read each other's shared memory; 1: no clusters. By the target
  int64_t shared_bytes_of_block = 40 << 10;   // so that nothing has to be asked for when a kernel is loaded
  int64_t shared_bytes_of_strips = 16 << 10;  // of a block's, so that a multiprocessor holds two
  int64_t second_level_bytes = 50 << 20;
  double memory_bytes_per_ns = 4000;
  double multiprocessor_bytes_per_ns = 80;  // of one, from beyond its own cache
  double launch_ns = 2100;                  // of a kernel, however little it does
  SkinnyGemmTimes skinny_gemm;
};

// What calls of the GPU's libraries, cuBLASLt and cuDNN, cost beside kernels of kiln's.
struct GpuLibraries {
  // The caller lets F32 factors of gemms be rounded to TF32. No row says so, but the request
  // (Numerics.float32_matmul_precision, which is in its key).
  bool tf32 = false;
  // Rows of a gemm up to which kiln's kernel, by clusters, is faster than cuBLASLt's, and with weights that
  // the second-level cache holds. On an H200 a layer with its SiLU takes 0.24 to 0.94 of eager's time at 1 to
  // 8 rows, of 768 x 3072 to 4096 x 14336; at 16 rows 0.60 to 0.90 with 2 to 32 MiB of weights, 1.06 to 1.11
  // with 90 and more.
  int64_t gemm_rows_of_kernel_max = 8;
  int64_t cached_gemm_rows_of_kernel_max = 16;
  // Below, padding a gemm's operands to 16 bytes costs what it saves: it copies two of the three matrices,
  // which many rows and columns pay for.
  int64_t padded_gemm_size_min = 256;
  double padded_gemm_multiplications_min = 2e9;
  // The F32 kernel of attention has a block of 128 threads take 64 queries and go through the keys 64 at a
  // time, some 6 µs each time on an H200; with few images most of the device waits. Up to this many keys it
  // is as fast as three kernels.
  int64_t attention_keys_at_once = 64;
  // Points of a depthwise convolution's window: cuDNN's kernels are better for wider ones (ConvNeXt's 7×7).
  int64_t unrolled_window_points_max = 25;
};

struct Machine {
  absl::string_view name = "";  // "": generic
  CpuMachine cpu;
  CpuLibraries cpu_libraries;
  GpuMachine gpu;
  GpuLibraries gpu_libraries;
};

// The row that the target names, else the generic one.
Machine MachineOf(const v1::Target& target);

enum class CpuVendor { kOther, kAmd, kIntel };
// What CPUID says of an x86 processor; family and model as AMD and Intel add their extended parts.
struct CpuId {
  CpuVendor vendor = CpuVendor::kOther;
  unsigned family = 0;
  unsigned model = 0;
};
// Names of rows, for Target.machine; "" where there is none.
absl::string_view CpuMachineName(const CpuId& id);
absl::string_view GpuMachineName(absl::string_view architecture, int64_t multiprocessors);

}  // namespace kiln
