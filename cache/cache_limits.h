// Limits of stores, bundles and the shared tier: what is refused, cut off, kept or asked for at most. In
// bytes where a name says so, else a count. Those that all folders share are in
// compiler/support/compiler_limits.h; tests/limits.py sees that no other stands elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kiln {

// Entries and batches, of every store.
inline constexpr size_t kEntryKeyBytesMax = 512;           // the catalogue has every key in memory
inline constexpr size_t kEntryValueBytesMax = 256u << 20;  // a value is in memory as a whole
inline constexpr size_t kBatchEntriesMax = 65'536;         // a batch is in memory as a whole

// The store on disk.
inline constexpr uint64_t kStoreBudgetBytesMin = 1u << 20;  // of its configuration; below, nothing would stay
inline constexpr size_t kUsesUnwrittenMax = 512;            // hits whose times are in memory alone;
inline constexpr size_t kUsesWrittenMax = 16'384;           // then they are written, so many at once
inline constexpr size_t kVerifyDetailsMax = 100;  // faults that a check tells of; the rest are counted

// Bundles.
inline constexpr size_t kBundleRecordBytesMax = 64u
                                                << 20;  // of entries that are no objects, before a manifest
inline constexpr size_t kBundleFrameBytesMax = kEntryValueBytesMax + (1u << 20);  // an entry with its key

// What a server of the shared tier answers.
inline constexpr size_t kRedisReplyBytesMax = 256u << 20;  // of one call's replies
inline constexpr int kRedisElementsMax = 1 << 16;          // of one array: announcing more takes no memory
inline constexpr size_t kRedisNodesNamedMax = 16;          // by redirections, beside the map's

// The shared tier's configuration.
inline constexpr int kTierAddressesMax = 64;
inline constexpr uint32_t kTierLookupMsMax = 10'000;      // milliseconds that each miss may wait
inline constexpr uint32_t kTierUnusedDaysMax = 3650;      // days
inline constexpr uint64_t kTierWriteBytesMin = 1u << 20;  // waiting to be written
inline constexpr size_t kTierPasswordBytesMax = 4096;     // of its file, which is read no further

// What daemons leave in the shared tier for each other, and read of it.
inline constexpr size_t kTierRecordsMax = 4096;              // of a namespace's list, the latest
inline constexpr size_t kTierBarredMax = 16;                 // records that a key has barred, the latest
inline constexpr int kTierBarTriesMax = 16;                  // where others change the same list meanwhile
inline constexpr size_t kTierWorkItemsMax = 1024;            // of a list
inline constexpr size_t kTierWorkItemBytesMax = 256u << 10;  // sealed
inline constexpr uint64_t kTierWorkTriesMax = 3;             // of an item, by daemons that died over it
inline constexpr size_t kTierDaemonsMax = 256;               // that are told of

}  // namespace kiln
