// Payloads of a client's errors, each empty: what is known beside the code. Threads: pure functions.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/cord.h"

namespace kiln {

// The service answered: this is a compile's outcome.
inline constexpr char kAnswered[] = "kiln/answered";
// It answered, but not with a verdict of the gang's.
inline constexpr char kWithoutVerdict[] = "kiln/without-verdict";
// Nobody answered: the circuit breaker counts it.
inline constexpr char kAway[] = "kiln/away";

// While a breaker is open.
inline absl::Status ServiceAwayError() {
  absl::Status status =
      absl::UnavailableError("the compile service did not answer lately; trying again later");
  status.SetPayload(kAway, absl::Cord());
  return status;
}

}  // namespace kiln
