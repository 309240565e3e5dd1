// `kilnctl verify`: reads every entry from disk and checks it and what it names. Thread-safe.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "cache/artifact_store.h"
#include "cache/checks/verifying_store.h"
#include "cache/store.h"

namespace kiln {

absl::StatusOr<Store::VerifyResult> VerifyEntries(const Catalog& catalog, VerifyingStore* store, bool repair,
                                                  const std::function<bool()>& gone);

}  // namespace kiln
