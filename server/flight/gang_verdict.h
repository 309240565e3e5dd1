// What a gang is served of one graph, as a value: an ordered list of variants to which is only ever appended,
// or a refusal. A member's variant is the first of the list whose guards hold for its hints, so it depends on
// the list and the hints alone, and stays the same however long the list becomes.
//
// Threads: pure functions. Limits: kGangVariantsMax, kGangVerdictBytesMax. Errors: of GangAnswer.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kiln/v1/graph.pb.h"
#include "kiln/v1/record.pb.h"

namespace kiln {

// What one member is served.
struct GangAnswer {
  enum class Kind {
    kOpen,     // nothing is said of such hints yet
    kVariant,  // `variant_id`
    kRefused,  // `status`, and so is everybody
    kUnknown,  // it can't be said: `status` says why
  };
  Kind kind = Kind::kOpen;
  std::string variant_id;
  absl::Status status;
};

// What there is for one member, before the gang is asked: a variant that fits it, a refusal, or neither.
struct GangProposal {
  std::string variant_id;
  v1::Guards guards;
  absl::Status refusal;

  bool empty() const { return variant_id.empty() && refusal.ok(); }
};

GangAnswer AnswerOf(const v1::GangVerdict& verdict, const v1::Hints& hints);

// An open verdict with what is proposed. RESOURCE_EXHAUSTED where it would be too long. A refusal that comes
// after a variant is none, for who got the variant does not fall back: an error of its code that tells so.
absl::StatusOr<v1::GangVerdict> Extended(v1::GangVerdict verdict, const GangProposal& proposal);

// Of two that are said of one graph: whether one is the other as it was earlier, or they contradict.
enum class GangAgreement { kSame, kFirstIsEarlier, kSecondIsEarlier, kContradict };
GangAgreement Compare(const v1::GangVerdict& first, const v1::GangVerdict& second);

bool IsEmpty(const v1::GangVerdict& verdict);

// A failure that says nothing of the graph: what the gang is served could not be told.
absl::Status WithoutVerdict(absl::Status why);
bool IsWithoutVerdict(const absl::Status& status);

GangAnswer UnknownVerdict(absl::Status why);

}  // namespace kiln
