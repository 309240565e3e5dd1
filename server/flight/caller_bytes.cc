#include "server/flight/caller_bytes.h"

namespace kiln {

bool CallerBytes::Fits(const std::string& tenant, uint64_t bytes) const {
  if (bytes == 0) return true;
  if (total_ > max_ || bytes > max_ - total_) return false;
  const auto own = of_.find(tenant);
  return (own == of_.end() ? 0 : own->second) + bytes <= max_ - total_;
}

void CallerBytes::Add(const std::string& tenant, uint64_t bytes) {
  if (bytes == 0) return;
  total_ += bytes;
  of_[tenant] += bytes;
}

void CallerBytes::Take(const std::string& tenant, uint64_t bytes) {
  if (bytes == 0) return;
  total_ -= bytes;
  const auto own = of_.find(tenant);
  own->second -= bytes;
  if (own->second == 0) of_.erase(own);
}

}  // namespace kiln
