// Limits that all folders share, of graphs, kernels and what travels, and the compiler's own: what is
// refused, cut off, kept or asked for at most. In bytes where a name says so, else a count. The store's are
// in cache/cache_limits.h, kilnd's and what a client may say to it in server/server_limits.h, the client's in
// client/client_limits.h. tests/limits.py sees that no other stands elsewhere.
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

// A launch on a GPU.
inline constexpr uint32_t kBlockThreadsMax = 1024;             // of a GPU's block, as on every device
inline constexpr int64_t kLaunchBlocksMax = int64_t{1} << 20;  // beyond it blocks take several iterations

// Simplification of sizes and indices. Beyond these an expression is kept as it was written, or bounded by
// what it is made of; all are far above what real graphs need.
inline constexpr size_t kExprTermsMax = 256;         // of a sum
inline constexpr size_t kExprExpandedTermsMax = 64;  // of a product of sums
inline constexpr int kExprDegreeMax = 24;
inline constexpr int kExprRuleDepthMax = 24;      // rules of divisions inside rules
inline constexpr int kExprEliminationsMax = 24;   // steps of a proof that bounds an expression,
inline constexpr size_t kExprProofTermsMax = 32;  // and terms that it may grow to

// Passes.
inline constexpr int kDecomposeDepthMax = 8;      // decompositions that emit composites that emit composites…
inline constexpr int64_t kPoolingWindowMax = 49;  // slices that a window is unrolled to
inline constexpr size_t kActivationNodesMax = 32;  // of a GELU: squares of squares have factors without end
inline constexpr int kExactDepthMax = 4;           // operators that are looked through for a value's rounding

// Searches of the scheduler: the time of a compile.
inline constexpr int kFusionRoundsMax = 10;
inline constexpr size_t kFusionUsersMax = 64;              // of one buffer: beyond it only neighbours pair up
inline constexpr int kFusionAlignAttemptsMax = 6;          // of a pair
inline constexpr uint64_t kKernelExpandedNodesMax = 4096;  // of an index, written out as a tree
inline constexpr int kComparedOpsMax = 64;                 // of a value's expression
inline constexpr size_t kKernelNameOperatorsMax = 4;
inline constexpr size_t kOtherSchedulesMax = 4;  // beside the chosen one, to be measured

// Memory of a program.
inline constexpr int64_t kRowCacheBytesMax = 256 << 10;  // of a thread's stack of some MiB
inline constexpr int64_t kGroupHeldBytesMax = 1 << 20;   // that grouped launches hold longer, all members

// Kernels that are worth measuring.
inline constexpr size_t kTunableKernelsMax = 16;                 // of a program
inline constexpr uint64_t kTunableBytesMax = uint64_t{4} << 30;  // of one's operands, that the tuner holds

// Notes for people: what comes with a graph, and what they are shown.
inline constexpr size_t kTitleBytesMax = 1024;
inline constexpr size_t kNotesBytesMax = 2u << 20;     // in memory
inline constexpr size_t kPrintedExprBytesMax = 2'000;  // a longer expression is cut
inline constexpr size_t kFieldsShownMax = 32;          // of an ingredient of two keys that differ

// Transport.
inline constexpr size_t kChunkBytesMax = 1u << 20;
inline constexpr size_t kFrameBytesMax = 256u << 20;
inline constexpr size_t kVariantsPerKeyMax = 16;
inline constexpr int kReplyBytesMax = 64 << 20;  // of one message from a kilnd
inline constexpr size_t kHopsMax = 2;            // daemons that a call may pass

// Gangs: of one verdict, and of all that a tenant's gangs, or everybody's, are given at a time.
inline constexpr size_t kGangIdBytes = 16;
inline constexpr size_t kGangVariantsMax = 64;
inline constexpr int kGangAsksMax = 2 * kGangVariantsMax;  // one that is lost is another member's gain
inline constexpr size_t kGangVerdictBytesMax = 1u << 20;
inline constexpr size_t kGangVerdictsPerTenantMax = 16'384;
inline constexpr size_t kGangBytesPerTenantMax = 64u << 20;
inline constexpr size_t kGangBytesMax = 256u << 20;

// Files in PEM: a signing key; certificates and their keys, whole chains of them.
inline constexpr size_t kSigningKeyFileBytesMax = 16u << 10;
inline constexpr size_t kTlsFileBytesMax = 1u << 20;

// Files that a daemon and each of its compilers have to be allowed to open, and those that a compiler is.
inline constexpr uint64_t kDaemonOpenFilesMin = 64;
inline constexpr uint64_t kWorkerOpenFilesMax = kDaemonOpenFilesMin;
inline constexpr uint64_t kGpuWorkerOpenFilesMax = 4096;

// What a worker keeps, and what is read of files.
inline constexpr size_t kWorkerBackendsMax = 8;         // that a worker keeps warm: callers have few targets
inline constexpr size_t kBuildNoteBytesMax = 1u << 20;  // of notes in an ELF file, for its build id
inline constexpr int kPathLinksMax = 40;  // of a private directory's path, as the kernel follows

}  // namespace kiln
