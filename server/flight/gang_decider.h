// The interface to whatever decides what a gang is served: Gangs, in a daemon.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "server/flight/gang_table.h"
#include "server/flight/gang_verdict.h"
#include "server/flight/known_key.h"

namespace kiln {

class GangDecider {
 public:
  virtual ~GangDecider() = default;
  // Calls `answer` once, within this call or later. kOpen only where nothing is proposed.
  virtual void Decide(const GangName& name, const v1::Hints& hints, const GangProposal& proposal,
                      std::function<void(GangAnswer)> answer) = 0;
  // The variant by its id; likewise. NOT_FOUND where it is no more.
  using VariantAnswer = std::function<void(absl::StatusOr<KnownVariant>)>;
  virtual void Variant(const GangName& name, const std::string& variant_id, VariantAnswer answer) = 0;
};

}  // namespace kiln
