// The keys of `signing { … }`: what signs here, and whose signatures count.
#pragma once

#include "absl/status/statusor.h"
#include "compiler/support/signature.h"
#include "kiln/v1/config.pb.h"

namespace kiln {

// Immutable once made; thread-safe.
struct Signing {
  SigningKey own;
  TrustedKeys trusted;  // `own` for every namespace
};

// `key_file` is given. INVALID_ARGUMENT, which names the field, and SigningKey::LoadOrMake's.
absl::StatusOr<Signing> LoadSigning(const v1::SigningConfig& config);

}  // namespace kiln
