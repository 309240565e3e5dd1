// Signatures of a key that this process made for itself: one for all that a test signs and checks.
//
// Threads: any number.
#pragma once

#include "cache/signatures.h"

namespace kiln {

inline const Signatures& TestSignatures() {
  static const Signatures& signatures = *new Signatures(Signatures::OfThisProcess());
  return signatures;
}

}  // namespace kiln
