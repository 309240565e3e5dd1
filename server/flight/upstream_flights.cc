#include "server/flight/upstream_flights.h"

#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/channel/channel.h"
#include "compiler/graph/key.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/manifest_objects.h"
#include "compiler/support/monotonic_time.h"
#include "compiler/support/status_macros.h"
#include "compiler/support/zstd.h"
#include "grpcpp/alarm.h"
#include "server/flight/gang_verdict.h"
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
  FlightId flight = 0;
  FlightRequestPtr request;
  MonotonicTime begun;
  std::shared_ptr<const std::string> packed;  // shared with each call
  std::string fingerprint;                    // when the latest call began
  // Those that run. Each has what it calls, which has this, and is let go of when it has come back.
  absl::flat_hash_map<ForwardTable::Turn, std::shared_ptr<ForwardedCompile>> calls;
  absl::flat_hash_map<uint64_t, std::unique_ptr<grpc::Alarm>> alarms;
  uint64_t last_alarm = 0;
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

// ---- Compiling there -------------------------------------------------------------------------

ForwardTable::Outside UpstreamFlights::ForwardsOutside() {
  ForwardTable::Outside outside;
  outside.pack = [this](FlightId flight) { Pack(forwarded_.at(flight)); };
  outside.call = [this](FlightId flight, ForwardTable::Turn turn, MonotonicTime deadline) {
    Call(forwarded_.at(flight), turn, deadline);
  };
  outside.cancel = [this](FlightId flight) {
    for (const auto& [turn, call] : forwarded_.at(flight)->calls) call->Cancel();
  };
  outside.remind = [this](FlightId flight, ForwardTable::Turn turn, MonotonicTime then) {
    SetAlarm(forwarded_.at(flight), then,
             [this, flight, turn] { forwards_.Due(flight, turn, MonotonicNow()); });
  };
  outside.wait = [this](FlightId flight, absl::Duration pause) {
    outside_.progress(flight, "waiting for a place, upstream", nullptr);
    SetAlarm(forwarded_.at(flight), MonotonicAfter(pause),
             [this, flight] { forwards_.Waited(flight, MonotonicNow()); });
  };
  outside.hurry = [this](FlightId flight) {
    for (const auto& [id, alarm] : forwarded_.at(flight)->alarms) alarm->Cancel();
  };
  outside.take = [this](FlightId flight, ForwardedEnd end) {
    TakeMade(forwarded_.at(flight), std::move(end));
  };
  outside.answered = [this] { parts_.upstream->counts().forwarded++; };
  outside.failed = [this](const absl::Status& why) { return CountFailure(why); };
  outside.unknown = [this](const absl::Status& why) { return GangUnknown(why); };
  outside.ended = [this](TaskId task, FlightId flight, FlightNext next) {
    forwarded_.erase(flight);
    outside_.ended(task, flight, std::move(next));
  };
  outside.deadline = [this](FlightId flight) { return outside_.deadline(flight); };
  outside.jitter = WithJitter;
  return outside;
}

void UpstreamFlights::Forward(TaskId task, FlightId flight, FlightRequestPtr request) {
  const auto callers =
      request->gang.id().empty() ? ForwardTable::Callers::kAny : ForwardTable::Callers::kGang;
  auto forwarded = std::make_shared<Forwarded>();
  forwarded->flight = flight;
  forwarded->request = std::move(request);
  forwarded->begun = MonotonicNow();
  forwarded_[flight] = std::move(forwarded);
  forwards_.Forward(task, flight, callers);
}

void UpstreamFlights::Pack(const ForwardedPtr& forwarded) {
  threads_->Post([this, forwarded] {
    forwarded->packed = std::make_shared<const std::string>(ZstdCompress(*forwarded->request->graph));
    strand_->Post([this, flight = forwarded->flight] { forwards_.Packed(flight, MonotonicNow()); });
  });
}

void UpstreamFlights::Call(const ForwardedPtr& forwarded, ForwardTable::Turn turn, MonotonicTime deadline) {
  forwarded->fingerprint = parts_.upstream->fingerprint();
  ForwardedCompile::Listener listener;
  listener.progress = [this, flight = forwarded->flight](v1::CompileEvent event) {
    const absl::string_view phase = PhaseOf(event);
    outside_.progress(flight, phase, std::make_shared<const FlightEvent>(std::move(event)));
  };
  listener.end = [this, forwarded, turn](ForwardedEnd end) {
    strand_->Post([this, forwarded, turn, end = std::move(end)]() mutable {
      forwarded->calls.erase(turn);
      forwards_.CallEnded(forwarded->flight, turn, std::move(end), MonotonicNow());
    });
  };
  const FlightRequest& request = *forwarded->request;
  forwarded->calls[turn] = parts_.upstream->Compile(CallerOf(request), deadline, HeaderOf(request),
                                                    forwarded->packed, std::move(listener));
}

void UpstreamFlights::SetAlarm(const ForwardedPtr& forwarded, MonotonicTime then,
                               std::function<void()> rings) {
  const uint64_t id = ++forwarded->last_alarm;
  auto alarm = std::make_unique<grpc::Alarm>();
  alarm->Set(GrpcDeadline(then), [this, forwarded, id, rings = std::move(rings)](bool) {
    strand_->Post([forwarded, id, rings] {
      forwarded->alarms.erase(id);
      rings();
    });
  });
  forwarded->alarms[id] = std::move(alarm);
}

void UpstreamFlights::TakeMade(const ForwardedPtr& forwarded, ForwardedEnd end) {
  threads_->Post([this, forwarded, end = std::move(end)] {
    auto taken = Take(*forwarded->request, *end.manifest, forwarded->fingerprint, forwarded->begun);
    strand_->Post([this, flight = forwarded->flight, taken = std::move(taken)]() mutable {
      forwards_.Taken(flight, std::move(taken));
    });
  });
}

void UpstreamFlights::Close() {
  closed_ = true;
  forwards_.StopAll();
  parts_.upstream->Close();
}

}  // namespace kiln
