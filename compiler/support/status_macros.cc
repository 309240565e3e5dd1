#include "compiler/support/status_macros.h"

#include "absl/strings/str_cat.h"

namespace kiln {

absl::Status StatusWrap(const absl::Status& status, absl::string_view what) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(what, ": ", status.message()));
}

}  // namespace kiln
