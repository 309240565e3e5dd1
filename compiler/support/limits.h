// Every limit of kiln, in one place. Each has a test at the limit and one beyond it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kiln {

inline constexpr uint32_t kGraphFormatVersion = 1;
inline constexpr uint32_t kKernelFormatVersion = 1;
inline constexpr uint32_t kProgramFormatVersion = 3;

// Graphs.
inline constexpr size_t kGraphBytesMax = 64u << 20;
inline constexpr size_t kGraphNodesMax = 200'000;
inline constexpr size_t kGraphInputsMax = 20'000;
inline constexpr size_t kGraphSymbolsMax = 4'096;
inline constexpr size_t kExprNodesMax = 4'000'000;
inline constexpr size_t kExprArgsMax = 64;
inline constexpr size_t kRankMax = 16;
inline constexpr size_t kNodeArgsMax = 64;
inline constexpr size_t kListMax = 65'536;
inline constexpr size_t kStringMax = 4'096;
inline constexpr int64_t kTensorBytesMax = int64_t{1} << 46;

// Kernels.
inline constexpr size_t kKernelOpsMax = 20'000;
inline constexpr size_t kKernelBuffersMax = 256;
inline constexpr size_t kKernelLoopsMax = 16;
inline constexpr size_t kKernelStagesMax = 256;
inline constexpr uint32_t kPointsPerThreadMax = 16;  // of a GPU, for each time that it takes some

// Transport.
inline constexpr size_t kChunkBytesMax = 1u << 20;
inline constexpr size_t kFrameBytesMax = 256u << 20;
inline constexpr size_t kVariantsPerKeyMax = 16;

// Gangs: of one verdict, and of all that a tenant's gangs, or everybody's, are given at a time.
inline constexpr size_t kGangIdBytes = 16;
inline constexpr size_t kGangVariantsMax = 64;
inline constexpr size_t kGangVerdictBytesMax = 1u << 20;
inline constexpr size_t kGangVerdictsPerTenantMax = 16'384;
inline constexpr size_t kGangBytesPerTenantMax = 64u << 20;
inline constexpr size_t kGangBytesMax = 256u << 20;

// Files that a daemon and each of its compilers have to be allowed to open.
inline constexpr uint64_t kDaemonOpenFilesMin = 64;

}  // namespace kiln
