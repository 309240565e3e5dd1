#include "compiler/support/status_macros.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace kiln {

absl::Status StatusWrap(const absl::Status& status, absl::string_view what) {
  if (status.ok()) return status;
  absl::Status wrapped(status.code(), absl::StrCat(what, ": ", status.message()));
  status.ForEachPayload(
      [&](absl::string_view type, const absl::Cord& payload) { wrapped.SetPayload(type, payload); });
  return wrapped;
}

}  // namespace kiln
