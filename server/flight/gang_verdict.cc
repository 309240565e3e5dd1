#include "server/flight/gang_verdict.h"

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "compiler/graph/guards.h"
#include "compiler/support/compiler_limits.h"

namespace kiln {
namespace {

constexpr char kWithoutVerdict[] = "kiln/without-verdict";

}  // namespace

GangAnswer AnswerOf(const v1::GangVerdict& verdict, const v1::Hints& hints) {
  GangAnswer answer;
  if (verdict.has_refusal()) {
    answer.kind = GangAnswer::Kind::kRefused;
    answer.status =
        absl::Status(static_cast<absl::StatusCode>(verdict.refusal().code()), verdict.refusal().reason());
    return answer;
  }
  for (const v1::GangVerdict::Variant& variant : verdict.variants()) {
    if (!GuardsHold(variant.guards(), hints)) continue;
    answer.kind = GangAnswer::Kind::kVariant;
    answer.variant_id = variant.variant_id();
    break;
  }
  return answer;
}

absl::StatusOr<v1::GangVerdict> Extended(v1::GangVerdict verdict, const GangProposal& proposal) {
  if (!proposal.refusal.ok()) {
    if (verdict.variants_size() > 0) {
      return absl::Status(
          proposal.refusal.code(),
          absl::StrCat("others of the gang run a variant of this graph, and for the sizes of this "
                       "member there is none: ",
                       proposal.refusal.message()));
    }
    verdict.mutable_refusal()->set_code(static_cast<int>(proposal.refusal.code()));
    verdict.mutable_refusal()->set_reason(std::string(proposal.refusal.message()));
  } else if (!proposal.variant_id.empty()) {
    if (static_cast<size_t>(verdict.variants_size()) >= kGangVariantsMax) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the gang has ", kGangVariantsMax, " variants of this graph already"));
    }
    v1::GangVerdict::Variant* variant = verdict.add_variants();
    variant->set_variant_id(proposal.variant_id);
    *variant->mutable_guards() = proposal.guards;
  }
  if (verdict.ByteSizeLong() > kGangVerdictBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the guards of the gang's variants of this graph are more than ", kGangVerdictBytesMax, " bytes"));
  }
  return verdict;
}

GangAgreement Compare(const v1::GangVerdict& first, const v1::GangVerdict& second) {
  if (IsEmpty(first) || IsEmpty(second)) {
    if (IsEmpty(first) && IsEmpty(second)) return GangAgreement::kSame;
    return IsEmpty(first) ? GangAgreement::kFirstIsEarlier : GangAgreement::kSecondIsEarlier;
  }
  // Everybody falls back, whatever for.
  if (first.has_refusal() && second.has_refusal()) return GangAgreement::kSame;
  if (first.has_refusal() || second.has_refusal()) return GangAgreement::kContradict;
  const int both = std::min(first.variants_size(), second.variants_size());
  for (int i = 0; i < both; ++i) {
    if (first.variants(i).variant_id() != second.variants(i).variant_id()) return GangAgreement::kContradict;
  }
  if (first.variants_size() == second.variants_size()) return GangAgreement::kSame;
  return first.variants_size() == both ? GangAgreement::kFirstIsEarlier : GangAgreement::kSecondIsEarlier;
}

bool IsEmpty(const v1::GangVerdict& verdict) {
  return !verdict.has_refusal() && verdict.variants_size() == 0;
}

absl::Status WithoutVerdict(absl::Status why) {
  why.SetPayload(kWithoutVerdict, absl::Cord());
  return why;
}

bool IsWithoutVerdict(const absl::Status& status) { return status.GetPayload(kWithoutVerdict).has_value(); }

GangAnswer UnknownVerdict(absl::Status why) {
  GangAnswer answer;
  answer.kind = GangAnswer::Kind::kUnknown;
  answer.status = std::move(why);
  return answer;
}

}  // namespace kiln
