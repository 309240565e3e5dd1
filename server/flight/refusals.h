// Back-pressure: why a compile is refused for now, and when to retry: for want of room or time
// (RESOURCE_EXHAUSTED), or while the daemon is drained or stops (UNAVAILABLE; without a delay where it
// stops).
//
// Threads: pure functions.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace kiln {

// So many wait. `again`: seconds until there may be room.
absl::Status RefusalOfFullQueue(size_t waiting, double again);
// What is kept of those that wait takes all the memory that there is for it.
absl::Status RefusalOfManyCallers(double again);
// There is some again after `until` seconds.
absl::Status RefusalOfUsedQuota(const std::string& tenant, double seconds_per_hour, double until);
// It would take `needs` seconds, which is more than its callers wait.
absl::Status RefusalOfLongQueue(double needs, double again);
absl::Status RefusalOfDrained();
absl::Status RefusalOfStopping();

// What another daemon has refused, as it told.
absl::Status WithPushback(absl::Status status, absl::Duration come_again);

// The retry delay; nullopt where the status has none.
std::optional<std::chrono::milliseconds> PushbackOf(const absl::Status& status);

}  // namespace kiln
