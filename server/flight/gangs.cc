#include "server/flight/gangs.h"

#include <algorithm>
#include <utility>

#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

constexpr size_t kAskingThreads = 4;

}  // namespace

const KnownVariant* VariantById(const KnownKey& known, const std::string& variant_id) {
  const auto found =
      std::find_if(known.variants.begin(), known.variants.end(),
                   [&](const KnownVariant& variant) { return variant.variant_id == variant_id; });
  return found == known.variants.end() ? nullptr : &*found;
}

GangProposal ProposalOf(const KnownKey& known, const v1::Hints& hints, absl::Time now) {
  GangProposal proposal;
  if (const KnownVariant* variant = ChooseVariant(known, hints); variant != nullptr) {
    proposal.variant_id = variant->variant_id;
    proposal.guards = variant->guards;
  } else {
    proposal.refusal = RefusalOf(known, now);
  }
  return proposal;
}

absl::StatusOr<std::unique_ptr<Gangs>> Gangs::Create(const Clock* clock, StoredKeys* keys) {
  std::unique_ptr<Gangs> made(new Gangs(clock, keys));
  KILN_ASSIGN_OR_RETURN(made->asks_, ThreadExecutor::Create(kAskingThreads));
  return made;
}

const KnownVariant* Gangs::Find(const GangName& name, const v1::Hints& hints, const KnownKey& known) {
  GangAnswer answer = table_.Find(name, hints);
  if (answer.kind == GangAnswer::Kind::kOpen) {
    GangProposal proposal;
    const KnownVariant* variant = ChooseVariant(known, hints);
    if (variant == nullptr) return nullptr;
    proposal.variant_id = variant->variant_id;
    proposal.guards = variant->guards;
    answer = table_.Decide(name, hints, proposal);
  }
  if (answer.kind != GangAnswer::Kind::kVariant) return nullptr;
  return VariantById(known, answer.variant_id);
}

void Gangs::Decide(const GangName& name, const v1::Hints& hints, const GangProposal& proposal,
                   std::function<void(GangAnswer)> answer) {
  answer(table_.Decide(name, hints, proposal));
}

void Gangs::Variant(const GangName& name, const std::string& variant_id, VariantAnswer answer) {
  asks_->Post([this, name, variant_id, answer = std::move(answer)] {
    const KnownKeyPtr known = keys_->Load(name.ns, name.compile_key);
    const KnownVariant* variant = VariantById(*known, variant_id);
    if (variant == nullptr) {
      answer(absl::NotFoundError("the variant that the gang runs is not kept any more"));
    } else {
      answer(*variant);
    }
  });
}

}  // namespace kiln
