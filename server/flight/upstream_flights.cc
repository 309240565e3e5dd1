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
  header.set_work_class(request.caller.work_class == Caller::Class::kBackground ? v1::WORK_BACKGROUND
                                                                                : v1::WORK_INTERACTIVE);
  return header;
}

constexpr absl::Duration kComeAgainMax = absl::Seconds(30);

absl::string_view PhaseOf(const v1::CompileEvent& event) {
  return event.has_tuned() ? "tuning, upstream" : "emitting, upstream";
}

// At least what the upstream asked for, and up to half more, so that those it refused do not come back at
// once.
absl::Duration WithJitter(absl::Duration pause) {
  std::minstd_rand random(std::random_device{}());
  return pause * std::uniform_real_distribution<double>(1, 1.5)(random);
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
  std::unique_ptr<grpc::Alarm> again;         // while it waits to be asked for again
  bool stopped = false;
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

UpstreamFlights::Verdict UpstreamFlights::LookUp(const FlightRequest& request, const KnownKeyPtr& known) {
  const std::string there = KeyThere(request.ns, request.request_key);
  if (!there.empty() && there != request.compile_key) {
    KnownKeyPtr kept = parts_.keys->Load(request.ns, there);
    if (ChooseVariant(*kept, request.hints) != nullptr) return {std::move(kept), FlightTable::Where::kHere};
  }
  const absl::StatusOr<Upstream::Answer> answer =
      parts_.upstream->LookUp(CallerOf(request), request.request_key, request.hints);
  if (!answer.ok()) return Away(answer.status(), known);
  if (answer->reply.has_failed()) {
    // Known here for as long as there are callers: its record is the upstream's.
    auto refused = std::make_shared<KnownKey>(*known);
    const int code = answer->reply.failed().code();
    refused->refusal = absl::Status(
        code > 0 && code <= 16 ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kInternal,
        answer->reply.failed().reason());
    refused->refused_until = absl::InfiniteFuture();
    return {std::move(refused), FlightTable::Where::kHere};
  }
  if (!answer->reply.has_hit()) {
    parts_.upstream->counts().misses++;
    return {known, FlightTable::Where::kElsewhere};
  }
  absl::StatusOr<KnownKeyPtr> kept = Keep(request, answer->reply.hit().manifest(), answer->fingerprint);
  if (!kept.ok()) return Away(kept.status(), known);
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

UpstreamFlights::Verdict UpstreamFlights::Away(const absl::Status& why, const KnownKeyPtr& known) {
  const absl::Status failure = CountFailure(why);
  if (compiles_here_) return {known, FlightTable::Where::kEverywhere};
  auto refused = std::make_shared<KnownKey>(*known);
  refused->refusal = failure;
  refused->refused_until = absl::InfiniteFuture();
  return {std::move(refused), FlightTable::Where::kHere};
}

FlightNext UpstreamFlights::NotMade(const absl::Status& why) {
  FlightNext next;
  const absl::Status failure = CountFailure(why);
  if (compiles_here_) {
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
  if (forwarded->stopped) {
    FlightNext next;
    next.outcome = absl::CancelledError("nobody waits for the answer");
    Finish(forwarded, std::move(next));
    return;
  }
  forwarded->fingerprint = parts_.upstream->fingerprint();
  ForwardedCompile::Listener listener;
  listener.progress = [this, flight = forwarded->flight](v1::CompileEvent event) {
    const absl::string_view phase = PhaseOf(event);
    outside_.progress(flight, phase, std::make_shared<const FlightEvent>(std::move(event)));
  };
  listener.end = [this, forwarded](ForwardedCompile::End end) {
    strand_->Post(
        [this, forwarded, end = std::move(end)]() mutable { CallEnded(forwarded, std::move(end)); });
  };
  const FlightRequest& request = *forwarded->request;
  forwarded->call = parts_.upstream->Compile(CallerOf(request), request.deadline, HeaderOf(request),
                                             forwarded->packed, std::move(listener));
}

void UpstreamFlights::CallEnded(const ForwardedPtr& forwarded, ForwardedCompile::End end) {
  forwarded->call = nullptr;  // which has the listener, which has this
  if (forwarded->stopped) return Call(forwarded);
  // A place of kForwardsMax is kept meanwhile.
  const absl::Duration pause =
      WithJitter(std::min(end.come_again.value_or(absl::ZeroDuration()), kComeAgainMax));
  const bool answered = end.manifest.has_value() || !end.verdict.ok();
  if (!answered && absl::IsResourceExhausted(end.call) && end.come_again.has_value() &&
      MonotonicAfter(pause) < forwarded->request->deadline) {
    outside_.progress(forwarded->flight, "waiting for a place, upstream", nullptr);
    forwarded->again = std::make_unique<grpc::Alarm>();
    forwarded->again->Set(GrpcDeadline(MonotonicAfter(pause)),
                          [this, forwarded](bool) { strand_->Post([this, forwarded] { Call(forwarded); }); });
    return;
  }
  threads_->Post([this, forwarded, end = std::move(end)] {
    strand_->Post(
        [this, forwarded, next = Made(*forwarded, end)]() mutable { Finish(forwarded, std::move(next)); });
  });
}

FlightNext UpstreamFlights::Made(const Forwarded& forwarded, const ForwardedCompile::End& end) {
  FlightNext next;
  if (end.manifest.has_value()) {
    auto taken = Take(*forwarded.request, *end.manifest, forwarded.fingerprint, forwarded.begun);
    if (!taken.ok()) return NotMade(taken.status());
    parts_.upstream->counts().forwarded++;
    next.outcome = *std::move(taken);
    next.workers_lost = end.workers_lost;
  } else if (!end.verdict.ok()) {
    parts_.upstream->counts().forwarded++;
    next.outcome = end.verdict;
  } else if (absl::IsUnavailable(end.call) && end.come_again.has_value()) {
    return NotMade(absl::FailedPreconditionError(end.call.message()));  // drained, and there
  } else if (absl::IsDeadlineExceeded(end.call)) {
    return NotMade(absl::ResourceExhaustedError(end.call.message()));  // its callers', and not its silence
  } else {
    return NotMade(end.call);
  }
  return next;
}

void UpstreamFlights::Finish(const ForwardedPtr& forwarded, FlightNext next) {
  forwarded_.erase(forwarded->flight);
  outside_.ended(forwarded->task, forwarded->flight, std::move(next));
}

void UpstreamFlights::Stop(FlightId flight) {
  const auto found = forwarded_.find(flight);
  if (found == forwarded_.end()) return;
  Forwarded& forwarded = *found->second;
  forwarded.stopped = true;
  if (forwarded.call != nullptr) forwarded.call->Cancel();
  if (forwarded.again != nullptr) forwarded.again->Cancel();
}

void UpstreamFlights::Close() {
  closed_ = true;
  for (const auto& [flight, forwarded] : forwarded_) Stop(flight);
  parts_.upstream->Close();
}

}  // namespace kiln
