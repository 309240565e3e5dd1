// Payloads of a client's errors, each empty: what is known beside the code. Threads: pure functions.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/cord.h"

namespace kiln {

// The service itself said so of a compile.
inline constexpr char kAnswered[] = "kiln/answered";
// And said that it is no verdict of the gang's.
inline constexpr char kWithoutVerdict[] = "kiln/without-verdict";
// Nobody answered: one more counts for the breaker.
inline constexpr char kAway[] = "kiln/away";

// While a breaker is open.
inline absl::Status ServiceAwayError() {
  absl::Status status =
      absl::UnavailableError("the compile service did not answer lately; trying again later");
  status.SetPayload(kAway, absl::Cord());
  return status;
}

}  // namespace kiln
