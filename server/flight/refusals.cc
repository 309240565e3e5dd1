#include "server/flight/refusals.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace kiln {
namespace {

constexpr char kPushback[] = "kiln/pushback-milliseconds";
constexpr double kPushbackSecondsMin = 0.1;
constexpr double kPushbackSecondsMax = 30;
constexpr double kPushbackQuotaSecondsMax = 3660;
constexpr double kPushbackDrainedSeconds = 5;

absl::Status WithPushback(absl::Status status, double seconds, double longest) {
  const double told = std::clamp(seconds, kPushbackSecondsMin, longest);
  status.SetPayload(kPushback, absl::Cord(absl::StrCat(static_cast<int64_t>(told * 1e3))));
  return status;
}

absl::Status Refusal(absl::string_view why, double seconds, double longest) {
  return WithPushback(absl::ResourceExhaustedError(why), seconds, longest);
}

}  // namespace

absl::Status RefusalOfFullQueue(size_t waiting, double again) {
  return Refusal(absl::StrCat("the queue is full (", waiting, " waiting); try again later"), again,
                 kPushbackSecondsMax);
}

absl::Status RefusalOfManyCallers(double again) {
  return Refusal("the callers that wait take all the memory that there is for them; try again later", again,
                 kPushbackSecondsMax);
}

absl::Status RefusalOfUsedQuota(const std::string& tenant, double seconds_per_hour, double until) {
  return Refusal(absl::StrCat("tenant ", tenant, " has used its compile_seconds_per_hour (", seconds_per_hour,
                              "); try again in ", static_cast<int64_t>(std::ceil(until)), " s"),
                 until, kPushbackQuotaSecondsMax);
}

absl::Status RefusalOfLongQueue(double needs, double again) {
  return Refusal(absl::StrCat("the queue is longer (", std::round(10 * needs) / 10,
                              " s) than the caller waits; try again later"),
                 again, kPushbackSecondsMax);
}

absl::Status RefusalOfDrained() {
  return WithPushback(
      absl::UnavailableError("the daemon is drained (kilnctl drain) and takes no new compiles"),
      kPushbackDrainedSeconds, kPushbackSecondsMax);
}

absl::Status RefusalOfStopping() { return absl::UnavailableError("the daemon is stopping"); }

absl::Status WithPushback(absl::Status status, absl::Duration come_again) {
  return WithPushback(std::move(status), absl::ToDoubleSeconds(come_again), kPushbackQuotaSecondsMax);
}

std::optional<std::chrono::milliseconds> PushbackOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kPushback);
  int64_t milliseconds = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &milliseconds)) return std::nullopt;
  return std::chrono::milliseconds(milliseconds);
}

}  // namespace kiln
