#include "server/flight/lookups.h"

#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "compiler/graph/key.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/digest.h"

namespace kiln {
namespace {

v1::LookupReply FailedReply(const absl::Status& status, bool no_verdict = false) {
  v1::LookupReply reply;
  reply.mutable_failed()->set_code(static_cast<int>(status.code()));
  reply.mutable_failed()->set_reason(std::string(status.message()));
  reply.mutable_failed()->set_no_verdict(no_verdict || IsWithoutVerdict(status));
  return reply;
}

v1::LookupReply MissReply() {
  v1::LookupReply reply;
  reply.mutable_miss();
  return reply;
}

std::shared_ptr<const std::string> Serialized(const v1::LookupReply& reply) {
  return std::make_shared<const std::string>(reply.SerializeAsString());
}

}  // namespace

std::string Lookups::KeyOf(const std::string& ns, const std::string& request_key) const {
  return CompileKey(ns, request_key, kProgramFormatVersion, parts_.fingerprint);
}

Lookups::Keys Lookups::KeysOf(const std::string& ns, const std::string& request_key) const {
  Keys keys;
  std::string own = KeyOf(ns, request_key);
  if (parts_.upstream != nullptr) {
    std::string there = parts_.upstream->KeyThere(ns, request_key);
    if (!there.empty() && there != own) keys.push_back(std::move(there));
  }
  keys.push_back(std::move(own));
  return keys;
}

void Lookups::CountHit(const KnownVariant& variant, const Caller& caller) {
  parts_.stats->lookups.hits++;
  Use use;
  use.hits = 1;
  use.saved_ms = variant.rebuild_ms;
  parts_.stats->uses.Count(caller.tenant, caller.job, use);
  parts_.stats->job_keys.Add(caller.tenant, caller.job,
                             absl::string_view(variant.entry.key).substr(0, kDigestBytes));
  parts_.keys->RecordUse(variant);
}

std::shared_ptr<const std::string> Lookups::Find(const Question& question) {
  if (!question.gang.id().empty()) return FindForGang(question);
  const Caller& caller = question.caller;
  bool all_known = true;
  const Keys keys = KeysOf(caller.tenant, question.request_key);
  for (const std::string& key : keys) {
    const KnownKeyPtr known = parts_.keys->Find(key);
    all_known &= known != nullptr;
    const KnownVariant* variant =
        known == nullptr ? nullptr : ChooseVariant(*known, question.hints, question.outdated());
    if (variant != nullptr) return CountedHit(*variant, caller);
  }
  if (all_known && !caller.forwarded) {
    // Only once the tenant's own namespace is known to have none.
    const std::optional<KnownVariant> other =
        parts_.keys->FindReadable(caller.tenant, question.request_key, question.hints, question.outdated());
    return other.has_value() ? CountedHit(*other, caller) : nullptr;
  }
  // What another daemon may have, or a flight brings, is asked for by `Lookup`.
  const bool alone = parts_.tier == nullptr && parts_.upstream == nullptr;
  if (!alone || parts_.joinable->Contains(keys.back()) || !parts_.keys->IsAbsent(caller.tenant, keys.back()))
    return nullptr;
  static const std::shared_ptr<const std::string> miss = Serialized(MissReply());
  parts_.stats->lookups.asked++;
  parts_.stats->lookups.misses++;
  return miss;
}

// One key for all members, or there were two verdicts; and what an upstream says is asked each time.
std::shared_ptr<const std::string> Lookups::FindForGang(const Question& question) {
  if (parts_.upstream != nullptr) return nullptr;
  const Caller& caller = question.caller;
  const std::string key = KeyOf(caller.tenant, question.request_key);
  const KnownKeyPtr known = parts_.keys->Find(key);
  if (known == nullptr) return nullptr;
  const KnownVariant* variant =
      parts_.gangs->Find({caller.tenant, question.gang.id(), key}, question.hints, *known);
  return variant == nullptr ? nullptr : CountedHit(*variant, caller);
}

std::shared_ptr<const std::string> Lookups::CountedHit(const KnownVariant& variant, const Caller& caller) {
  parts_.stats->lookups.asked++;
  CountHit(variant, caller);
  return variant.reply;
}

void Lookups::Lookup(Question question, Answer answer) {
  parts_.stats->lookups.asked++;
  if (!question.gang.id().empty() && parts_.upstream != nullptr) {
    AnswerGangByUpstream(std::move(question), std::move(answer));
    return;
  }
  parts_.disk->Post(
      [this, question = std::move(question), answer = std::move(answer)] { LookupHere(question, answer); });
}

void Lookups::LookupHere(const Question& question, const Answer& answer) {
  const Caller& caller = question.caller;
  const Keys keys = KeysOf(caller.tenant, question.request_key);
  const std::string& compile_key = keys.back();  // this daemon's own
  KnownKeyPtr known;
  if (!question.gang.id().empty()) {
    known = parts_.keys->LoadFor(caller.tenant, compile_key, question.request_key, caller.forwarded);
    AnswerGang({caller.tenant, question.gang.id(), compile_key, ""}, std::move(known), question, answer);
    return;
  }
  for (const std::string& key : keys) {
    known = parts_.keys->LoadFor(caller.tenant, key, question.request_key,
                                 caller.forwarded || key != compile_key);
    const KnownVariant* variant = ChooseVariant(*known, question.hints, question.outdated());
    if (variant == nullptr) continue;
    AnswerHit(*variant, compile_key, caller, answer);
    return;
  }
  parts_.stats->lookups.misses++;
  if (const absl::Status refusal = RefusalOf(*known, parts_.clock->WallNow()); !refusal.ok()) {
    answer(Serialized(FailedReply(refusal)));
    return;
  }
  AnswerMiss(compile_key, compile_key, caller, answer);
}

void Lookups::AnswerHit(const KnownVariant& variant, const std::string& compile_key, const Caller& caller,
                        const Answer& answer) {
  CountHit(variant, caller);
  answer(variant.reply);
  // The index had it not: what it answers by itself is told nobody. Another namespace's is not this tenant's
  // in the tier.
  const bool own = absl::StartsWith(variant.entry.key, compile_key);
  if (parts_.tier != nullptr && own && variant.durable) parts_.tier->Renew(caller.tenant, variant.entry);
}

void Lookups::AnswerMiss(const std::string& compile_key, const std::string& slot, const Caller& caller,
                         const Answer& answer) {
  parts_.job_of(slot, [this, compile_key, caller, answer](std::string job) {
    v1::LookupReply reply = MissReply();
    if (!job.empty()) {
      parts_.stats->job_keys.Add(caller.tenant, caller.job, compile_key);
      reply.mutable_in_flight()->set_job_id(std::move(job));
    }
    answer(Serialized(reply));
  });
}

void Lookups::AnswerGang(const GangName& name, KnownKeyPtr known, const Question& question,
                         const Answer& answer) {
  const GangProposal proposal =
      ProposalOf(*known, question.hints, parts_.clock->WallNow(), question.outdated());
  parts_.gangs->Decide(name, question.hints, proposal,
                       [this, name, caller = question.caller, answer, known](const GangAnswer& decided) {
                         const KnownVariant* variant = decided.kind == GangAnswer::Kind::kVariant
                                                           ? VariantById(*known, decided.variant_id)
                                                           : nullptr;
                         if (variant != nullptr) {
                           AnswerHit(*variant, name.compile_key, caller, answer);
                           return;
                         }
                         parts_.stats->lookups.misses++;
                         if (!decided.status.ok()) {
                           const bool no_verdict = decided.kind == GangAnswer::Kind::kUnknown;
                           answer(Serialized(FailedReply(decided.status, no_verdict)));
                           return;
                         }
                         // A variant that is not here comes with the flight.
                         AnswerMiss(name.compile_key, name.compile_key, caller, answer);
                       });
}

// Whatever is here: the verdict is there.
void Lookups::AnswerGangByUpstream(Question question, Answer answer) {
  FlightRequest asked;
  asked.ns = question.caller.tenant;
  asked.request_key = std::move(question.request_key);
  asked.compile_key = KeyOf(asked.ns, asked.request_key);
  asked.caller = std::move(question.caller);
  asked.hints = std::move(question.hints);
  asked.gang = std::move(question.gang);
  asked.hops = std::move(question.hops);
  parts_.upstream->LookUpForGang(asked, [this, asked, answer = std::move(answer)](const KnownKeyPtr& known) {
    if (const KnownVariant* variant = ChooseVariant(*known, asked.hints); variant != nullptr) {
      AnswerHit(*variant, asked.compile_key, asked.caller, answer);
      return;
    }
    parts_.stats->lookups.misses++;
    if (!known->refusal.ok()) {
      answer(Serialized(FailedReply(known->refusal)));
      return;
    }
    AnswerMiss(asked.compile_key, FlightSlot(asked.compile_key, asked.gang, asked.hints), asked.caller,
               answer);
  });
}

}  // namespace kiln
