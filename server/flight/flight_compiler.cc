#include "server/flight/flight_compiler.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "compiler/graph/key.h"
#include "compiler/support/digest.h"
#include "compiler/support/kernel_abi.h"
#include "server/server_limits.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

constexpr uint32_t kStrikesAllowed = 2;
constexpr uint32_t kKillsAllowed = 4;

// A refusal that would only repeat.
bool IsLasting(const absl::Status& status) {
  return absl::IsUnimplemented(status) || absl::IsInvalidArgument(status);
}

}  // namespace

std::string FlightCompiler::KeyOfKernel(const FlightRequest& request, const std::string& kernel,
                                        const v1::Target& target) const {
  return KernelKey(request.ns, kernel, target, KILN_KERNEL_ABI_VERSION, fingerprint_);
}

void FlightCompiler::Record(const FlightRequest& request, const absl::Status& outcome) {
  if (outcome.ok()) {
    Forget(request.compile_key);
    return;
  }
  if (absl::IsCancelled(outcome)) return;
  stats_->flights.failed++;
  spdlog::info("compile {} \"{}\" failed: {}", ToHex(request.compile_key.substr(0, 6)), request.notes.title(),
               outcome.ToString());
  if (IsLasting(outcome)) keys_->PutRefusal(request, fingerprint_, outcome, /*quarantine=*/false);
}

void FlightCompiler::RememberMiss(const FlightRequest& request) {
  MissTable::Miss miss;
  miss.tenant = request.caller.tenant;
  miss.job = request.caller.job;
  miss.compile_key = request.compile_key;
  miss.record.set_namespace_(request.ns);
  miss.record.set_request_key(request.request_key);
  *miss.record.mutable_sections() = request.sections;
  miss.record.mutable_notes()->set_title(request.notes.title());
  *miss.record.mutable_hints() = request.hints;
  miss.record.set_compiler_fingerprint(fingerprint_);
  miss.unix_seconds = absl::ToUnixSeconds(absl::Now());
  miss.variants_known = request.job.variants_known;
  miss.debug = request.debug;
  stats_->last_misses.Add(std::move(miss));
}

absl::Status FlightCompiler::Strike(const FlightRequest& request, const WorkerResult& crash,
                                    const Losses& losses) {
  if (crash.killed) {
    // Somebody's kill, or the kernel's for want of memory: no proof against the graph, but no reason to
    // go on for ever.
    if (losses.killed <= kKillsAllowed) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat(losses.killed, " compiler processes were killed while they worked on this graph"));
  }
  // Both count.
  const bool last_of_all = IsLastStrikeOfAll(request);
  if (!IsLastStrike(request.compile_key) && !last_of_all) return absl::OkStatus();
  Forget(request.compile_key);
  absl::Status refusal = absl::FailedPreconditionError(absl::StrCat(
      "compiling this graph brought down ", kStrikesAllowed, " compiler processes (", crash.status.message(),
      "); it is refused for a day or until \"kilnctl rm ", ToHex(request.compile_key.substr(0, 6)), "\""));
  keys_->PutRefusal(request, fingerprint_, refusal, /*quarantine=*/true);
  return refusal;
}

// Where the tier does not say, this daemon's own count.
bool FlightCompiler::IsLastStrikeOfAll(const FlightRequest& request) {
  if (tier_ == nullptr) return false;
  const absl::StatusOr<int64_t> count = tier_->CountCrash({request.ns, request.compile_key});
  return count.ok() && *count >= kStrikesAllowed;
}

bool FlightCompiler::IsLastStrike(const std::string& compile_key) {
  absl::MutexLock lock(&mutex_);
  const auto [strikes, first] = strikes_.emplace(compile_key, 0);
  if (++strikes->second >= kStrikesAllowed) {
    strikes_.erase(strikes);
    return true;
  }
  if (!first) return false;
  struck_.push_back(compile_key);
  // The oldest is forgiven; its key may have gone by itself.
  if (struck_.size() > kStruckKeysMax) {
    strikes_.erase(struck_.front());
    struck_.pop_front();
  }
  return false;
}

void FlightCompiler::Forget(const std::string& compile_key) {
  absl::MutexLock lock(&mutex_);
  strikes_.erase(compile_key);
  if (compile_key.empty()) strikes_.clear();
}

}  // namespace kiln
