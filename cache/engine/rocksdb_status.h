// RocksDB's statuses in our codes, without paths. What the environment causes is never INTERNAL.
#pragma once

#include "absl/status/status.h"
#include "rocksdb/status.h"

namespace kiln {

absl::Status FromRocksdb(const rocksdb::Status& status);

// Whether an Open that failed so means a damaged database (and not a locked, full or forbidden one).
bool IsDamage(const rocksdb::Status& status);
// Whether an Open that failed so means a whole database that somebody else wrote in another way.
bool IsIncompatible(const rocksdb::Status& status);

}  // namespace kiln
