// Memory of objects that are being sent, and of the calls that send them. An object that several calls of a
// tenant send is in memory once and counts once, however slowly they take it. The total is bounded, and a
// tenant may use as much as is left free (server/flight/caller_bytes.h).
//
// Threads: thread-safe. What it gives may outlive it. Limits: an entry for each object that is being sent.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "cache/artifact_store.h"

namespace kiln {

class SentObjects {
 public:
  explicit SentObjects(uint64_t bytes_max);

  // Released with its last copy. RESOURCE_EXHAUSTED, with a retry delay (`PushbackOf`), where there is no
  // room.
  using Share = std::shared_ptr<const void>;
  absl::StatusOr<Share> Reserve(const std::string& tenant, uint64_t bytes);
  // The object of `bytes`: where one of the tenant's calls sends it, that one, else what `read` has, which is
  // called once there is room for it. It counts until the last copy ends. Errors as Reserve's and `read`'s.
  absl::StatusOr<EntryValue> Get(const std::string& tenant, const std::string& digest, uint64_t bytes,
                                 absl::FunctionRef<absl::StatusOr<EntryValue>()> read);

 private:
  class Budget;
  struct Object;

  const std::shared_ptr<Budget> budget_;
};

}  // namespace kiln
