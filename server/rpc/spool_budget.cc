#include "server/rpc/spool_budget.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/flight/refusals.h"

namespace kiln {
namespace {

constexpr absl::Duration kComeAgain = absl::Seconds(10);

}  // namespace

absl::StatusOr<SpoolBudget::Share> SpoolBudget::Take(uint64_t bytes) {
  if (bytes > bytes_max_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the bundle has ", bytes, " bytes, and the store may have ", bytes_max_, " (store.budget_bytes)"));
  }
  absl::MutexLock lock(&mutex_);
  if (bytes > bytes_max_ - taken_) {
    return WithPushback(absl::ResourceExhaustedError(absl::StrCat(
                            "the bundle has ", bytes, " bytes, and other imports that run have ", taken_,
                            " of ", bytes_max_, " (store.budget_bytes): try again when they have ended")),
                        kComeAgain);
  }
  taken_ += bytes;
  return Share(this, [bytes](SpoolBudget* budget) {
    absl::MutexLock given_back(&budget->mutex_);
    budget->taken_ -= bytes;
  });
}

}  // namespace kiln
