// How many of each kind a bundle has. Threads: pure functions.
#pragma once

#include "cache/artifact_store.h"
#include "kiln/v1/admin.pb.h"

namespace kiln {

inline void CountEntry(EntryKind kind, v1::BundleCounts* counts) {
  switch (kind) {
    case EntryKind::kManifest: counts->set_programs(counts->programs() + 1); break;
    case EntryKind::kObject: counts->set_objects(counts->objects() + 1); break;
    case EntryKind::kKernel: counts->set_kernels(counts->kernels() + 1); break;
    case EntryKind::kTuning: counts->set_tuning_records(counts->tuning_records() + 1); break;
    default: break;
  }
}

}  // namespace kiln
