// Whether a bundle may be put: whole, of this compiler, signed for each of its namespaces by a key that
// counts, and every entry what its key says, by the same rules as entries of the store. Nothing is written.
// Reads the whole file, an entry at a time.
//
// Threads: a pure function. Errors: DATA_LOSS for what is damaged or not what it says; PERMISSION_DENIED for
// a key that does not count, naming it and how to trust it; FAILED_PRECONDITION for another compiler's;
// INVALID_ARGUMENT for more records before one program than an import holds; CANCELLED.
#pragma once

#include <cstdio>
#include <functional>

#include "absl/status/statusor.h"
#include "cache/bundle/bundle_compiler.h"
#include "cache/signatures.h"
#include "kiln/v1/bundle.pb.h"

namespace kiln {

absl::StatusOr<v1::BundleHeader> CheckBundle(FILE* file, const BundleCompiler& compiler,
                                             const Signatures& signatures, const std::function<bool()>& gone);

}  // namespace kiln
