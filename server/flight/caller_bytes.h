// Memory of requests that hold no place: headers of flights that are looked up, hints of all that wait. It is
// bounded for all together, and no tenant takes all of it: a tenant may use as much as is left free, so that
// each of n greedy ones has max / (n + 1).
//
// No threads: whoever owns it locks it. Limits: an entry a tenant that holds any.
#pragma once

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"

namespace kiln {

class CallerBytes {
 public:
  explicit CallerBytes(uint64_t max) : max_(max) {}

  bool Fits(const std::string& tenant, uint64_t bytes) const;
  void Add(const std::string& tenant, uint64_t bytes);   // whether it fits or not: it is there
  void Take(const std::string& tenant, uint64_t bytes);  // no more than was added
  uint64_t total() const { return total_; }

 private:
  const uint64_t max_;
  uint64_t total_ = 0;
  absl::flat_hash_map<std::string, uint64_t> of_;
};

}  // namespace kiln
