// How a compile at the upstream has ended: by a program, by a verdict, or by neither.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln {

struct ForwardedEnd {
  std::optional<v1::SignedManifest> manifest;  // the program, which can be fetched
  absl::Status verdict;                        // what the upstream's compiler says of the graph; OK: nothing
  bool without_gang = false;                   // or why it can't tell what the gang is served
  absl::Status call;                           // where there is neither: why
  std::optional<absl::Duration> come_again;    // as a full or a drained upstream says
  uint32_t workers_lost = 0;
};

}  // namespace kiln
