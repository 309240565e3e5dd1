// Limits of what others send and of what is read from files, for all folders: graphs, kernels, what travels.
// What one folder alone keeps or asks for is limited where that is; a client's words to kilnd in
// server/rpc/request_limits.h.
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
inline constexpr size_t kGraphValuesMax = 4 * kGraphNodesMax;
inline constexpr size_t kGraphPartsMax = 4'000'000;  // messages within its own, before any is read
inline constexpr size_t kExprNodesMax = 4'000'000;
inline constexpr size_t kExprArgsMax = 64;
inline constexpr size_t kAllExprArgsMax = 16u << 20;  // of all expressions
inline constexpr size_t kRankMax = 16;
inline constexpr size_t kNodeArgsMax = 64;
inline constexpr size_t kListMax = 65'536;
inline constexpr size_t kStringMax = 4'096;
inline constexpr size_t kNameMax = 256;  // of an operator or an argument
inline constexpr int64_t kTensorBytesMax = int64_t{1} << 46;

// Kernels.
inline constexpr size_t kKernelOpsMax = 20'000;
inline constexpr size_t kKernelBuffersMax = 256;
inline constexpr size_t kKernelLoopsMax = 16;
inline constexpr size_t kKernelStagesMax = 256;
inline constexpr size_t kKernelIndirectsMax = 64;    // distinct operators that one index expression reads
inline constexpr uint32_t kPointsPerThreadMax = 16;  // of a GPU, for each time that it takes some
inline constexpr size_t kFlatImageBytesMax = size_t{256} << 20;

// Notes for people that come with a graph.
inline constexpr size_t kTitleBytesMax = 1024;
inline constexpr size_t kNotesBytesMax = 2u << 20;  // in memory

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

// Files in PEM: a signing key; certificates and their keys, whole chains of them.
inline constexpr size_t kSigningKeyFileBytesMax = 16u << 10;
inline constexpr size_t kTlsFileBytesMax = 1u << 20;

// Files that a daemon and each of its compilers have to be allowed to open.
inline constexpr uint64_t kDaemonOpenFilesMin = 64;

}  // namespace kiln
