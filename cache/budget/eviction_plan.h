// Decides what goes: pure, so that it can be tested by cases. Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/artifact_store.h"
#include "cache/checks/references.h"

namespace kiln {

// All that a store holds.
struct EvictionInput {
  struct Manifest {
    CatalogEntry entry;
    References references;
    bool damaged = false;  // its references are not known; it goes first
  };
  std::vector<Manifest> manifests;
  std::vector<CatalogEntry> others;  // failures and tuning records, which stand for themselves
  std::vector<CatalogEntry> objects;
  std::vector<CatalogEntry> kernels;
  std::vector<CatalogEntry> meta;
  uint64_t live_bytes = 0;  // of all of these
  uint64_t live_bytes_wanted = 0;
  int64_t keep_if_used_after = 0;  // for what no manifest names
};

// Groups of entries to delete, each in one batch: first what nobody names, then the least recently used
// until live_bytes_wanted is reached or only pinned ones are left.
std::vector<std::vector<EntryId>> PlanEviction(const EvictionInput& input);

}  // namespace kiln
