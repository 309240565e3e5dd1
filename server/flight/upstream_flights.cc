#include "server/flight/upstream_flights.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/channel/channel.h"
#include "compiler/graph/key.h"
#include "compiler/support/limits.h"
#include "compiler/support/manifest_objects.h"
#include "compiler/support/monotonic_time.h"
#include "compiler/support/status_macros.h"
#include "compiler/support/zstd.h"
#include "grpcpp/alarm.h"
#include "server/flight/gang_verdict.h"
#include "server/flight/refusals.h"
#include "server/flight/upstream_artifact.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

UpstreamCaller CallerOf(const FlightRequest& request) {
  return {request.ns, request.caller.job, request.hops};
}

v1::CompileHeader HeaderOf(const FlightRequest& request) {
  v1::CompileHeader header;
  *header.mutable_sections() = request.sections;
  header.set_graph_bytes(request.graph->size());
  *header.mutable_hints() = request.hints;
  *header.mutable_notes() = request.notes;
  if (!request.gang.id().empty()) *header.mutable_gang() = request.gang;
  header.set_work_class(request.caller.work_class == Caller::Class::kBackground ? v1::WORK_BACKGROUND
                                                                                : v1::WORK_INTERACTIVE);
  return header;
}

constexpr absl::Duration kComeAgainMax = absl::Seconds(30);
// Before a call ends whose flight has callers that wait longer; half of what it has, where that is less.
constexpr absl::Duration kExtendBefore = absl::Seconds(2);

absl::string_view PhaseOf(const v1::CompileEvent& event) {
  return event.has_tuned() ? "tuning, upstream" : "emitting, upstream";
}

// At least what the upstream asked for, and up to half more, so that those it refused do not come back at
// once.
absl::Duration WithJitter(absl::Duration pause) {
  std::minstd_rand random(std::random_device{}());
  return pause * std::uniform_real_distribution<double>(1, 1.5)(random);
}

// Known for as long as there are callers: the record of it is another's.
KnownKeyPtr Refused(const KnownKey& known, const absl::Status& why) {
  auto refused = std::make_shared<KnownKey>(known);
  refused->refusal = why;
  refused->refused_until = absl::InfiniteFuture();
  return refused;
}

}  // namespace

struct UpstreamFlights::Forwarded {
  TaskId task = 0;
  FlightId flight = 0;
  FlightRequestPtr request;
  MonotonicTime begun;
  std::shared_ptr<const std::string> packed;  // shared with each call
  std::string fingerprint;                    // when the call began
  std::shared_ptr<ForwardedCompile> call;     // while it runs
  std::shared_ptr<ForwardedCompile> earlier;  // while that one takes over from it
  uint64_t turn = 0;                          // of `call`
  MonotonicTime deadline;                     // of `call`
  std::unique_ptr<grpc::Alarm> again;         // while it waits to be asked for again
  std::unique_ptr<grpc::Alarm> extend;        // before the deadline
  size_t out = 0;                             // calls and alarms for extensions, each of which comes back
  // kStopped: nobody waits for it. kOver: what it brought is being taken in.
  enum class State { kRuns, kStopped, kOver } state = State::kRuns;
  std::optional<FlightNext> next;  // what came of it; told when nothing is out
};

absl::Status UpstreamFlights::Start(Executor* strand) {
  strand_ = strand;
  KILN_ASSIGN_OR_RETURN(threads_, ThreadExecutor::Create(kUpstreamThreads));
  return absl::OkStatus();
}

std::string UpstreamFlights::KeyThere(absl::string_view ns, absl::string_view request_key) const {
  const std::string fingerprint = parts_.upstream->fingerprint();
  return fingerprint.empty() ? "" : CompileKey(ns, request_key, kProgramFormatVersion, fingerprint);
}

// ---- Looking up ------------------------------------------------------------------------------

void UpstreamFlights::LookFurther(FlightId flight, const FlightRequest& request, const v1::Hints& hints,
                                  KnownKeyPtr known) {
  if (closed_) return;
  FlightRequest asked = request;
  asked.hints = hints;
  threads_->Post([this, flight, asked = std::move(asked), known = std::move(known)] {
    Verdict verdict = LookUp(asked, known);
    outside_.looked(flight, std::move(verdict.known), verdict.where);
  });
}

void UpstreamFlights::LookUpForGang(FlightRequest asked, std::function<void(const KnownKeyPtr&)> answer) {
  threads_->Post([this, asked = std::move(asked), answer = std::move(answer)] {
    answer(LookUp(asked, std::make_shared<const KnownKey>()).known);
  });
}

UpstreamFlights::Verdict UpstreamFlights::LookUp(const FlightRequest& request, const KnownKeyPtr& known) {
  const bool gang = !request.gang.id().empty();
  const std::string there = KeyThere(request.ns, request.request_key);
  if (!gang && !there.empty() && there != request.compile_key) {
    KnownKeyPtr kept = parts_.keys->Load(request.ns, there);
    if (ChooseVariant(*kept, request.hints) != nullptr) return {std::move(kept), FlightTable::Where::kHere};
  }
  const absl::StatusOr<Upstream::Answer> answer =
      parts_.upstream->LookUp(CallerOf(request), request.request_key, request.hints, request.gang);
  if (!answer.ok()) return Away(request, answer.status(), known);
  if (answer->reply.has_failed()) {
    // Known here for as long as there are callers: its record is the upstream's.
    const v1::LookupReply::Failed& failed = answer->reply.failed();
    const absl::Status told(failed.code() > 0 && failed.code() <= 16
                                ? static_cast<absl::StatusCode>(failed.code())
                                : absl::StatusCode::kInternal,
                            failed.reason());
    return {Refused(*known, failed.no_verdict() ? WithoutVerdict(told) : told), FlightTable::Where::kHere};
  }
  if (!answer->reply.has_hit()) {
    parts_.upstream->counts().misses++;
    return {known, FlightTable::Where::kElsewhere};
  }
  const v1::SignedManifest& manifest = answer->reply.hit().manifest();
  absl::StatusOr<KnownKeyPtr> kept = gang ? KeepForGang(request, manifest, answer->fingerprint)
                                          : Keep(request, manifest, answer->fingerprint);
  if (!kept.ok()) return Away(request, kept.status(), known);
  parts_.upstream->counts().hits++;
  return {*std::move(kept), FlightTable::Where::kHere};
}

// Known for these hints from now on.
absl::StatusOr<KnownKeyPtr> UpstreamFlights::Keep(const FlightRequest& request,
                                                  const v1::SignedManifest& manifest,
                                                  const std::string& fingerprint) {
  KILN_ASSIGN_OR_RETURN(const std::shared_ptr<const Artifact> artifact,
                        Take(request, manifest, fingerprint, MonotonicNow()));
  parts_.keys->Announce(artifact);
  const absl::Status put = parts_.keys->Put(artifact);
  KnownKeyPtr known = parts_.keys->Load(request.ns, artifact->compile_key);
  if (ChooseVariant(*known, request.hints) != nullptr) return known;
  return put.ok() ? absl::InternalError("the store has lost what it was given") : put;
}

// That variant and no other, though others that are here fit as well; nothing of it is fetched that is here.
absl::StatusOr<KnownKeyPtr> UpstreamFlights::KeepForGang(const FlightRequest& request,
                                                         const v1::SignedManifest& signed_manifest,
                                                         const std::string& fingerprint) {
  KILN_ASSIGN_OR_RETURN(const v1::Manifest manifest,
                        OpenUpstreamManifest(parts_.signatures, signed_manifest, request, fingerprint));
  KnownKeyPtr known = parts_.keys->Load(request.ns, manifest.compile_key());
  if (VariantById(*known, manifest.variant_id()) == nullptr) {
    KILN_ASSIGN_OR_RETURN(known, Keep(request, signed_manifest, fingerprint));
  }
  const KnownVariant* const variant = VariantById(*known, manifest.variant_id());
  if (variant == nullptr) return absl::InternalError("the store has lost what it was given");
  auto told = std::make_shared<KnownKey>();
  told->variants.push_back(*variant);
  return told;
}

absl::StatusOr<std::shared_ptr<const Artifact>> UpstreamFlights::Take(
    const FlightRequest& request, const v1::SignedManifest& signed_manifest, const std::string& fingerprint,
    MonotonicTime begun) {
  KILN_ASSIGN_OR_RETURN(const v1::Manifest manifest,
                        OpenUpstreamManifest(parts_.signatures, signed_manifest, request, fingerprint));
  std::vector<v1::ObjectRef> objects;
  std::vector<EntryId> ids;
  for (const v1::ObjectRef* object : ObjectsOf(manifest)) {
    objects.push_back(*object);
    ids.push_back({EntryKind::kObject, object->digest()});
  }
  Holds::Hold hold = parts_.store->Keep(ids);
  if (!hold.late()) {
    // What memory alone has goes along.
    std::erase_if(objects, [&](const v1::ObjectRef& object) {
      return parts_.store->catalog().Find({EntryKind::kObject, object.digest()}).ok();
    });
  }
  KILN_ASSIGN_OR_RETURN(Upstream::Objects fetched,
                        parts_.upstream->Fetch(CallerOf(request), manifest, objects));
  KILN_ASSIGN_OR_RETURN(Artifact artifact,
                        UpstreamArtifact(signed_manifest, manifest, std::move(fetched), request, fingerprint,
                                         SecondsBetween(begun, MonotonicNow())));
  artifact.holds.push_back(std::move(hold));
  return std::make_shared<const Artifact>(std::move(artifact));
}

// ---- Where it is not to be had ---------------------------------------------------------------

absl::Status UpstreamFlights::CountFailure(const absl::Status& why) {
  Upstream& upstream = *parts_.upstream;
  if (absl::IsDataLoss(why)) upstream.counts().refused++;
  upstream.TakeFailure(why);
  return absl::UnavailableError(absl::StrCat("the upstream ", upstream.address(), " is not to be had (",
                                             why.message(), "), and upstream.when_away is AWAY_FAIL"));
}

// What a gang's member is told.
absl::Status UpstreamFlights::GangUnknown(const absl::Status& why) const {
  return WithoutVerdict(
      absl::UnavailableError(absl::StrCat("the upstream ", parts_.upstream->address(),
                                          " does not say what the gang is served: ", why.message())));
}

UpstreamFlights::Verdict UpstreamFlights::Away(const FlightRequest& request, const absl::Status& why,
                                               const KnownKeyPtr& known) {
  const absl::Status failure = CountFailure(why);
  if (!request.gang.id().empty()) return {Refused(*known, GangUnknown(why)), FlightTable::Where::kHere};
  if (compiles_here_) return {known, FlightTable::Where::kEverywhere};
  return {Refused(*known, failure), FlightTable::Where::kHere};
}

FlightNext UpstreamFlights::NotMade(const FlightRequest& request, const absl::Status& why) {
  FlightNext next;
  const absl::Status failure = CountFailure(why);
  if (!request.gang.id().empty()) {
    next.outcome = GangUnknown(why);
  } else if (compiles_here_) {
    next.tasks.push_back({TaskQueue::Kind::kPlan, 0, false});
  } else {
    next.outcome = failure;
  }
  return next;
}

// ---- Compiling there -------------------------------------------------------------------------

void UpstreamFlights::Forward(TaskId task, FlightId flight, FlightRequestPtr request) {
  auto forwarded = std::make_shared<Forwarded>();
  forwarded->task = task;
  forwarded->flight = flight;
  forwarded->request = std::move(request);
  forwarded->begun = MonotonicNow();
  forwarded_[flight] = forwarded;
  threads_->Post([this, forwarded] {
    forwarded->packed = std::make_shared<const std::string>(ZstdCompress(*forwarded->request->graph));
    strand_->Post([this, forwarded] { Call(forwarded); });
  });
}

void UpstreamFlights::Call(const ForwardedPtr& forwarded) {
  forwarded->again = nullptr;  // which has what it calls, which has this
  if (forwarded->state == Forwarded::State::kOver) return;
  if (forwarded->state == Forwarded::State::kStopped) {
    forwarded->state = Forwarded::State::kOver;
    forwarded->next.emplace();
    forwarded->next->outcome = absl::CancelledError("nobody waits for the answer");
    FinishWhenAllIsBack(forwarded);
    return;
  }
  forwarded->fingerprint = parts_.upstream->fingerprint();
  forwarded->deadline = outside_.deadline(forwarded->flight);
  ForwardedCompile::Listener listener;
  listener.progress = [this, flight = forwarded->flight](v1::CompileEvent event) {
    const absl::string_view phase = PhaseOf(event);
    outside_.progress(flight, phase, std::make_shared<const FlightEvent>(std::move(event)));
  };
  listener.end = [this, forwarded, turn = ++forwarded->turn](ForwardedCompile::End end) {
    strand_->Post([this, forwarded, turn, end = std::move(end)]() mutable {
      CallEnded(forwarded, turn, std::move(end));
    });
  };
  const FlightRequest& request = *forwarded->request;
  ++forwarded->out;
  forwarded->call = parts_.upstream->Compile(CallerOf(request), forwarded->deadline, HeaderOf(request),
                                             forwarded->packed, std::move(listener));
  const MonotonicTime now = MonotonicNow();
  if (forwarded->deadline == MonotonicTime::max() || forwarded->deadline <= now) return;
  const MonotonicTime then = std::max(forwarded->deadline - absl::ToChronoNanoseconds(kExtendBefore),
                                      now + (forwarded->deadline - now) / 2);
  ++forwarded->out;
  forwarded->extend = std::make_unique<grpc::Alarm>();
  forwarded->extend->Set(GrpcDeadline(then), [this, forwarded, turn = forwarded->turn](bool) {
    strand_->Post([this, forwarded, turn] { Extend(forwarded, turn); });
  });
}

// The call that begins now joins what runs there for the one before it, which ends by itself.
void UpstreamFlights::Extend(const ForwardedPtr& forwarded, uint64_t turn) {
  --forwarded->out;
  const bool runs = forwarded->state == Forwarded::State::kRuns && forwarded->call != nullptr;
  if (runs && turn == forwarded->turn && outside_.deadline(forwarded->flight) > forwarded->deadline) {
    forwarded->earlier = std::move(forwarded->call);
    Call(forwarded);
  }
  FinishWhenAllIsBack(forwarded);
}

void UpstreamFlights::CallEnded(const ForwardedPtr& forwarded, uint64_t turn, ForwardedCompile::End end) {
  --forwarded->out;
  const bool latest = turn == forwarded->turn;
  (latest ? forwarded->call : forwarded->earlier) = nullptr;  // which has the listener, which has this
  const bool answered = end.manifest.has_value() || !end.verdict.ok();
  const bool runs = forwarded->state == Forwarded::State::kRuns;
  if (forwarded->state == Forwarded::State::kOver || (!latest && (!answered || !runs)))
    return FinishWhenAllIsBack(forwarded);
  if (!runs) return Call(forwarded);
  if (!answered && IsToBeAskedAgain(forwarded, end)) return;
  forwarded->state = Forwarded::State::kOver;
  forwarded->extend = nullptr;
  for (const auto& other : {forwarded->call, forwarded->earlier}) {
    if (other != nullptr) other->Cancel();
  }
  threads_->Post([this, forwarded, end = std::move(end)] {
    strand_->Post([this, forwarded, next = Made(*forwarded, end)]() mutable {
      forwarded->next = std::move(next);
      FinishWhenAllIsBack(forwarded);
    });
  });
}

// Later, or now; a place of kForwardsMax is kept meanwhile.
bool UpstreamFlights::IsToBeAskedAgain(const ForwardedPtr& forwarded, const ForwardedCompile::End& end) {
  const MonotonicTime latest = outside_.deadline(forwarded->flight);
  if (absl::IsDeadlineExceeded(end.call) && MonotonicNow() < latest && forwarded->deadline < latest) {
    Call(forwarded);
    return true;
  }
  const absl::Duration pause =
      WithJitter(std::min(end.come_again.value_or(absl::ZeroDuration()), kComeAgainMax));
  if (!absl::IsResourceExhausted(end.call) || !end.come_again.has_value() || MonotonicAfter(pause) >= latest)
    return false;
  outside_.progress(forwarded->flight, "waiting for a place, upstream", nullptr);
  forwarded->again = std::make_unique<grpc::Alarm>();
  forwarded->again->Set(GrpcDeadline(MonotonicAfter(pause)),
                        [this, forwarded](bool) { strand_->Post([this, forwarded] { Call(forwarded); }); });
  return true;
}

FlightNext UpstreamFlights::Made(const Forwarded& forwarded, const ForwardedCompile::End& end) {
  FlightNext next;
  const FlightRequest& request = *forwarded.request;
  if (end.manifest.has_value()) {
    auto taken = Take(request, *end.manifest, forwarded.fingerprint, forwarded.begun);
    if (!taken.ok()) return NotMade(request, taken.status());
    parts_.upstream->counts().forwarded++;
    next.outcome = *std::move(taken);
    next.workers_lost = end.workers_lost;
  } else if (!end.verdict.ok()) {
    parts_.upstream->counts().forwarded++;
    next.outcome = end.without_gang ? WithoutVerdict(end.verdict) : end.verdict;
  } else if (end.come_again.has_value() && (!compiles_here_ || !request.gang.id().empty())) {
    // Full or drained, and there.
    CountFailure(absl::FailedPreconditionError(end.call.message())).IgnoreError();
    next.outcome = WithPushback(end.call, *end.come_again);
  } else if (absl::IsUnavailable(end.call) && end.come_again.has_value()) {
    return NotMade(request, absl::FailedPreconditionError(end.call.message()));  // drained, and there
  } else if (absl::IsDeadlineExceeded(end.call)) {
    // Its callers', and not its silence.
    return NotMade(request, absl::ResourceExhaustedError(end.call.message()));
  } else {
    return NotMade(request, end.call);
  }
  return next;
}

void UpstreamFlights::FinishWhenAllIsBack(const ForwardedPtr& forwarded) {
  if (forwarded->out > 0 || !forwarded->next.has_value()) return;
  FlightNext next = *std::exchange(forwarded->next, std::nullopt);
  forwarded_.erase(forwarded->flight);
  outside_.ended(forwarded->task, forwarded->flight, std::move(next));
}

void UpstreamFlights::Stop(FlightId flight) {
  const auto found = forwarded_.find(flight);
  if (found == forwarded_.end()) return;
  Forwarded& forwarded = *found->second;
  if (forwarded.state == Forwarded::State::kRuns) forwarded.state = Forwarded::State::kStopped;
  if (forwarded.call != nullptr) forwarded.call->Cancel();
  if (forwarded.earlier != nullptr) forwarded.earlier->Cancel();
  forwarded.extend = nullptr;
  if (forwarded.again != nullptr) forwarded.again->Cancel();
}

void UpstreamFlights::Close() {
  closed_ = true;
  for (const auto& [flight, forwarded] : forwarded_) Stop(flight);
  parts_.upstream->Close();
}

}  // namespace kiln
