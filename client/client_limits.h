// Limits of the client: what a process or a program of kiln's refuses, cuts off, keeps or asks for at most.
// In bytes where a name says so, else a count. Those that all folders share are in
// compiler/support/compiler_limits.h; tests/limits.py sees that no other stands elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kiln {

// A compile at a distance: a network that is away for some seconds is waited for.
inline constexpr int kConnectionLossesMax = 4;  // and as many new calls

// The runtime: what a process keeps for its calls, and asks of libraries.
inline constexpr size_t kArenaPlacementsMax = 16;            // of a program, each of 8 bytes a storage
inline constexpr size_t kCaptureStepsMax = 2048;             // of a CUDA graph, between two fences
inline constexpr size_t kLibraryPlansMax = 4096;             // of a library: sizes may change with every call
inline constexpr size_t kScratchKeptBytesMin = 64u << 10;    // what calls leave for those after them,
inline constexpr size_t kScratchKeptBytesMax = 1u << 20;     // and beyond which one has memory of its own
inline constexpr size_t kGemmWorkspaceBytesMax = 32u << 20;  // that cuBLASLt may use during a gemm
inline constexpr size_t kCudnnKnobsMax = 64;                 // of one engine
inline constexpr int32_t kCudaDevicesMax = 64;               // of a process: arrays have a place for each
inline constexpr size_t kMemoryCallOperandsMax = 8;  // of a call without handles, its results included
inline constexpr size_t kMemoryCallResultsMax = 3;   // likewise

// kiln-tuner: what it measures, which kilnd and its worker say.
inline constexpr uint32_t kBenchRoundsMax = 100;                  // of one request
inline constexpr size_t kBenchMarksMax = 1024;                    // on a stream, for times between them
inline constexpr size_t kBenchOperandsMax = 256;                  // of a kernel
inline constexpr int64_t kBenchElementsMax = int64_t{1} << 33;    // of a kernel's operand
inline constexpr size_t kBenchOperandBytesMax = size_t{8} << 30;  // of the GPU's memory
inline constexpr int64_t kBenchGemmSizeMax = int64_t{1} << 34;  // elements; sums of spans stay within 64 bits
inline constexpr int kGemmAlgorithmsMax = 24;                   // that cuBLASLt is asked for
inline constexpr size_t kConvolutionOffersMax = 16;             // that cuDNN is asked for

// kilnctl.
inline constexpr double kImportBytesPerSecondMin = 4 << 20;  // checked and put, while nothing is heard of it
inline constexpr size_t kDoctorDaemonsNamedMax = 4;          // the rest are counted

}  // namespace kiln
