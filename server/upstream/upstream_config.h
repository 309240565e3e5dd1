// An upstream's options from its configuration. Threads: pure functions.
#pragma once

#include "absl/status/status.h"
#include "kiln/v1/config.pb.h"
#include "server/upstream/upstream.h"

namespace kiln {

inline constexpr uint32_t kUpstreamLookupMsDefault = 2'000;

void UpstreamDefaults(v1::UpstreamConfig* config);

// INVALID_ARGUMENT, which names the field, for what can't be; looks at no file.
absl::Status CheckUpstreamConfig(const v1::UpstreamConfig& config);

// Of a configuration that has been checked.
Upstream::Options UpstreamOptions(const v1::UpstreamConfig& config);

}  // namespace kiln
