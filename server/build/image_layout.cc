#include "server/build/image_layout.h"

#include <limits>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/library/convolution.h"
#include "compiler/support/status_macros.h"
#include "compiler/target/cost_model.h"

namespace kiln {
namespace {

absl::StatusOr<double> MicrosecondsOf(const v1::Tunable& tunable, Tuner::Session& session) {
  KILN_ASSIGN_OR_RETURN(const v1::Measurement record, session.Measure(tunable));
  if (record.microseconds() > 0) return record.microseconds();
  return absl::UnavailableError("a measurement without a time");
}

absl::StatusOr<double> CopyMicroseconds(int64_t bytes, Tuner::Session& session) {
  v1::Tunable tunable;
  tunable.mutable_copy()->set_bytes(bytes);
  return MicrosecondsOf(tunable, session);
}

absl::StatusOr<double> KernelMicroseconds(const v1::PlanReply& plan, Tuner::Session& session) {
  double launches = 0, bytes = 0;
  for (const v1::Step& step : plan.program().steps()) {
    if (!step.has_launch() && !step.has_launch_group()) continue;
    const uint32_t launched = step.has_launch() ? step.launch().kernel() : step.launch_group().kernel();
    const v1::PlannedKernel& kernel = plan.kernels(static_cast<int>(launched));
    ++launches;
    if (kernel.bytes_read().has_expr() || kernel.bytes_written().has_expr()) {
      return absl::UnimplementedError("a kernel's bytes are of no fixed sizes");
    }
    bytes += static_cast<double>(kernel.bytes_read().value() + kernel.bytes_written().value());
  }
  const absl::StatusOr<double> small = CopyMicroseconds(cost::kSmallCopyBytes, session);
  if (!small.ok() && !session.is_elsewhere()) return small.status();
  const absl::StatusOr<double> large = CopyMicroseconds(cost::kLargeCopyBytes, session);
  KILN_RETURN_IF_ERROR(small.status());
  KILN_RETURN_IF_ERROR(large.status());
  return cost::KernelMicroseconds({.small = *small, .large = *large}, launches, bytes);
}

// Stops where it is `enough`, and says so.
absl::StatusOr<double> PriceOf(const v1::PlanReply& plan, double enough, Tuner::Session& session,
                               bool* stopped) {
  if (plan.images().others() > 0) {
    return absl::UnimplementedError(
        absl::StrCat(plan.images().others(),
                     " convolutions can't be measured (by another library, or of no fixed sizes)"));
  }
  const absl::StatusOr<double> kernels = KernelMicroseconds(plan, session);
  if (!kernels.ok() && !session.is_elsewhere()) return kernels;
  absl::Status lacking = kernels.status();
  double price = kernels.value_or(0);
  for (const v1::ImageConvolutions::Use& use : plan.images().measured()) {
    const absl::StatusOr<double> microseconds = MicrosecondsOf(use.tunable(), session);
    if (!microseconds.ok()) {
      // Others are asked for all that is missing at once.
      lacking.Update(microseconds.status());
      if (!session.is_elsewhere()) return lacking;
      continue;
    }
    price += use.calls() * *microseconds;
    *stopped = price >= enough && &use != &*plan.images().measured().rbegin();
    if (*stopped) break;
  }
  KILN_RETURN_IF_ERROR(lacking);
  return price;
}

std::map<std::string, uint32_t> OtherCalls(const v1::PlanReply& plan) {
  std::map<std::string, uint32_t> calls;
  for (const v1::Step& step : plan.program().steps()) {
    if (step.has_call() && !IsConvolution(step.call().target())) ++calls[step.call().target()];
  }
  return calls;
}

absl::Status Weigh(const v1::PlanReply& channels_last, const PlanTracedLayout& plan_traced_layout,
                   Tuner::Session& session, v1::PlanReply* traced_layout, v1::ImageLayout* layout) {
  bool stopped = false;
  KILN_ASSIGN_OR_RETURN(const double first,
                        PriceOf(channels_last, std::numeric_limits<double>::infinity(), session, &stopped));
  KILN_ASSIGN_OR_RETURN(*traced_layout, plan_traced_layout());
  if (OtherCalls(channels_last) != OtherCalls(*traced_layout))
    return absl::UnimplementedError("the layouts differ in other library calls than convolutions");
  KILN_ASSIGN_OR_RETURN(const double second, PriceOf(*traced_layout, first, session, &stopped));
  layout->set_channels_last_microseconds(first);
  layout->set_as_traced_microseconds(second);
  layout->set_at_least(stopped);
  layout->set_as_traced(second < Tuner::kWorthwhile * first);
  return absl::OkStatus();
}

}  // namespace

v1::ImageLayout ChooseImageLayout(const v1::PlanReply& channels_last,
                                  const PlanTracedLayout& plan_traced_layout, Tuner::Session& session,
                                  v1::PlanReply* traced_layout) {
  v1::ImageLayout layout;
  const absl::Status weighed = Weigh(channels_last, plan_traced_layout, session, traced_layout, &layout);
  if (!weighed.ok()) layout.set_without(std::string(weighed.message()));
  return layout;
}

}  // namespace kiln
