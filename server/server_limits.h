// Limits of kilnd: what it refuses, cuts off, keeps or asks for at most. In bytes or the time that a name
// says, else a count. Many are a configuration's bounds: what it may set has its defaults in server/config.
// Those that all folders share are in compiler/support/compiler_limits.h, the store's and the shared tier's
// in cache/cache_limits.h; tests/limits.py sees that no other stands elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kiln {

// What a configuration may say.
inline constexpr uint32_t kWorkersMax = 1024;
inline constexpr uint32_t kGpusMax = 64;
inline constexpr uint64_t kWorkerBytesMin = 256u << 20;      // of memory
inline constexpr uint32_t kSecondsMax = 30 * 24 * 3600;      // seconds of every time: a month
inline constexpr uint32_t kQueueMax = 1u << 20;              // compiles that wait
inline constexpr uint64_t kHeaderMemoryBytesMax = 8u << 20;  // of a request, parsed; beside its graph
inline constexpr uint64_t kObjectsBytesMin = 288u << 20;     // the largest object and the largest request
inline constexpr uint64_t kListenBytesMin = 32u << 20;  // of a gRPC server: some messages at their largest
inline constexpr uint32_t kConnectionsMax = 1u << 20;
inline constexpr uint32_t kStreamsMax = 1u << 20;  // calls on a connection
inline constexpr size_t kTenantNameBytesMax = 64;
inline constexpr int kTenantReadsMax = 8;                 // namespaces that a tenant may read beside its own
inline constexpr size_t kIdentityBytesMax = 2048;         // of a certificate's URI
inline constexpr uint32_t kUpstreamLookupMsMax = 60'000;  // milliseconds

// Connections. The largest message is a header with facts, notes and hints at their limits.
inline constexpr int kRequestBytesMax = 6 << 20;
inline constexpr int kMetadataBytesMax = 8 << 10;       // of a call
inline constexpr int kPingMillisecondsMin = 5'000;      // between two without data; who sends
inline constexpr int kPingStrikesMax = 2;               // them faster more often is cut off
inline constexpr size_t kWatchedConnectionsMax = 4096;  // until it is seen which of them are gone

// A request. INVALID_ARGUMENT beyond (rpc/request_limits.h).
inline constexpr size_t kNamespaceBytesMax = 256;
inline constexpr size_t kJobBytesMax = 256;           // more is left out
inline constexpr uint64_t kExecutedMax = 1ull << 40;  // of one report
inline constexpr size_t kHintsMax = 65'536;
inline constexpr size_t kSectionBytesMax = 64u << 10;  // of RequestSections, but facts
inline constexpr size_t kFactsBytesMax = 2u << 20;
inline constexpr size_t kFetchDigestsMax = 65'536;

// What else a call may say.
inline constexpr size_t kDaemonIdDigitsMax = 64;        // of a daemon on the call's way, in hex
inline constexpr size_t kReflectionBytesMax = 4 << 10;  // of a question

// What a reply of Admin shows.
inline constexpr size_t kEntriesListedMax = 100'000;
inline constexpr size_t kEntriesShownMax = 64;           // in full
inline constexpr uint64_t kListingBytesMax = 64u << 20;  // of one listing
inline constexpr size_t kListingLinesMax = 20'000;       // of each of two that are compared
inline constexpr size_t kExplainedMax = 100;             // misses
inline constexpr size_t kJobsNamedMax = 8;               // where the one that is asked for has no miss
inline constexpr int kVariantsShownMax = 8;              // of a key
inline constexpr size_t kComparedMax = 4096;  // stored keys, the latest, and as many of the shared tier
inline constexpr uint64_t kComparedBytesMax = 64u << 20;  // of their records

// What is kept for people.
inline constexpr size_t kLogLineBytesMax = 8192;         // the rest of a line is cut off
inline constexpr int64_t kDaemonLogBytesMax = 16 << 20;  // of a daemon in the background; then a new file
inline constexpr size_t kMissesOfJobMax = 32;            // the last
inline constexpr size_t kMissesMax = 1000;               // of all jobs
inline constexpr uint64_t kMissBytesMax = 16u << 20;     // of all jobs' in memory
inline constexpr size_t kUseJobsMax = 1000;              // whose use is counted apart
inline constexpr size_t kUseTenantsMax = 250;            // likewise

// The queue.
inline constexpr size_t kFairQueueIdleMax = 128;     // tenants, and jobs of each, remembered without work
inline constexpr size_t kExpectedTenantsMax = 1024;  // whose refused callers are waited for
inline constexpr size_t kQuotaOthersMax = 250;       // tenants without a quota whose seconds are counted

// Flights.
inline constexpr uint64_t kCallersBytesMin = 32u << 20;  // headers and hints: of one tenant two headers
inline constexpr size_t kStruckKeysMax = 4096;           // whose workers ended; the oldest is forgiven
inline constexpr size_t kForwardsMax = 64;               // compiles at the upstream at a time
inline constexpr int kPutBackWritesMax = 4;              // of a gang's verdict that a server lost
inline constexpr size_t kVariantLooksPerTenantMax = 2;   // at a time, for a gang's variant
inline constexpr size_t kVariantsWantedPerTenantMax = 4096;

// Tuning, here and for the cluster.
inline constexpr uint32_t kProcessesLostMax = 3;  // by one tunable; each costs a second
inline constexpr size_t kKnownDevicesMax = 4096;  // of the tier's, a namespace and a kind each
inline constexpr uint64_t kAskedKernelBytesMax = 4u << 20;
inline constexpr int kAskedSchedulesMax = 256;          // of one kernel
inline constexpr size_t kWaitingProgramsMax = 1024;     // of more, the one to be looked at last is forgotten
inline constexpr size_t kOutdatedProgramsMax = 65'536;  // variants that do no more wait
inline constexpr int kWorkTurnSecondsMax = 5;  // seconds, for another daemon's item's turn at a worker

// Workers.
inline constexpr size_t kWorkerLineBytesMax = 4096;       // of what one says; more is another line
inline constexpr int kWorkerLinesMax = 20;                // of all of them a second: they may be hostile
inline constexpr size_t kWorkerErrorBytesMax = 8192;      // the rest of a message is cut off
inline constexpr uint64_t kShelvedBytesMax = 256u << 20;  // of one that waits for its tenant's next task,
inline constexpr int kShelvedMinutesMax = 5;              // and minutes that it does

}  // namespace kiln
