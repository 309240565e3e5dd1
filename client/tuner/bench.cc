#include "client/tuner/bench.h"

#include <algorithm>
#include <vector>

#include "client/client_limits.h"
#include "compiler/support/status_macros.h"

namespace kiln::tuner {
namespace {

constexpr uint32_t kFirstRounds = 3;
constexpr double kClearlySlower = 1.2;  // of the default's time, in the first rounds
constexpr int kWarmUps = 2;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace

absl::StatusOr<v1::Measured> Bench::Measure(const v1::MeasureCandidate& request) {
  if (request.rounds() < 1 || request.rounds() > kBenchRoundsMax)
    return absl::InvalidArgumentError("rounds out of range");
  KILN_RETURN_IF_ERROR(Choose(request.candidate()));
  absl::StatusOr<v1::Measured> measured = Judge(request.rounds());
  if (!absl::IsFailedPrecondition(measured.status())) return measured;
  v1::Measured refused;
  refused.set_wrong(std::string(measured.status().message()));
  return refused;
}

absl::StatusOr<v1::Measured> Bench::Judge(uint32_t rounds) {
  for (int i = 0; i < kWarmUps; ++i) {
    for (const bool candidate : {false, true}) KILN_RETURN_IF_ERROR(Run(candidate));
  }
  KILN_ASSIGN_OR_RETURN(v1::Measured measured, Time(std::min(rounds, kFirstRounds)));
  KILN_RETURN_IF_ERROR(CheckIntact());
  if (measured.ratio() > kClearlySlower) return measured;
  v1::Measured wrong;
  KILN_ASSIGN_OR_RETURN(*wrong.mutable_wrong(), Difference());
  KILN_RETURN_IF_ERROR(CheckIntact());
  if (!wrong.wrong().empty()) return wrong;
  KILN_ASSIGN_OR_RETURN(measured, Time(rounds));
  KILN_RETURN_IF_ERROR(CheckIntact());
  return measured;
}

absl::StatusOr<v1::Measured> Bench::Time(uint32_t rounds) {
  // Everything is queued before the first wait, so that the GPU never waits for the CPU.
  for (uint32_t round = 0; round < rounds; ++round) {
    for (uint32_t turn = 0; turn < 2; ++turn) {
      const uint32_t which = (round + turn) % 2;
      KILN_RETURN_IF_ERROR(gpu_.FlushL2());
      KILN_RETURN_IF_ERROR(gpu_.Mark(4 * round + 2 * which));
      KILN_RETURN_IF_ERROR(Run(which == 1));
      KILN_RETURN_IF_ERROR(gpu_.Mark(4 * round + 2 * which + 1));
    }
  }
  KILN_RETURN_IF_ERROR(gpu_.Wait());
  std::vector<double> times[2], ratios;
  for (uint32_t round = 0; round < rounds; ++round) {
    for (uint32_t which = 0; which < 2; ++which) {
      KILN_ASSIGN_OR_RETURN(const double time,
                            gpu_.MicrosecondsBetween(4 * round + 2 * which, 4 * round + 2 * which + 1));
      times[which].push_back(time);
    }
    ratios.push_back(times[1].back() / std::max(times[0].back(), 1e-3));
  }
  v1::Measured measured;
  measured.set_default_microseconds(Median(times[0]));
  measured.set_microseconds(Median(times[1]));
  measured.set_ratio(Median(ratios));
  return measured;
}

}  // namespace kiln::tuner
