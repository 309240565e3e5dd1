#include "tests/sim/sim_daemon.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/graph/guards.h"
#include "server/flight/gang_subscriber.h"
#include "server/flight/gangs.h"
#include "tests/sim/cluster_checks.h"
#include "tests/sim/sim_stories.h"

namespace kiln::sim {
namespace {

using State = FlightTable::State;

constexpr milliseconds kTimerLate(1);
constexpr seconds kLookMax(5);  // until a look that is out has to have been told
constexpr int kWidth = 10;      // of a variant's range of sizes

// Whether a key's graph is one that no compiler takes.
bool IsRefused(const std::string& key) { return std::stoi(key.substr(1)) % 8 == 7; }

}  // namespace

SimDaemon::SimDaemon(Cluster* cluster, Host* host, Host* farm)
    : cluster_(cluster),
      host_(host),
      life_(std::make_shared<Life>(Life{++cluster->last_life})),
      number_(life_->number),
      born_(cluster->clock.now),
      link_(cluster, host, life_),
      claims_(cluster, host, &link_, number_),
      writer_(cluster, &link_),
      tier_flights_(NewTierFlights()),
      upstream_(farm == nullptr ? nullptr : NewUpstream(farm)) {
  options_.tasks.workers = 1 + static_cast<size_t>(cluster_->draw.Below(upstream_ == nullptr ? 4 : 2));
  options_.tasks.forwards = upstream_ == nullptr ? 0 : 2 + static_cast<size_t>(cluster_->draw.Below(8));
  options_.queue_max = 1 + static_cast<size_t>(cluster_->draw.Below(cluster_->draw.Chance(30) ? 4 : 40));
  options_.upload_patience = milliseconds(40);
  options_.new_job_id = [this] { return absl::StrCat(number_, ".", ++last_job_); };
  table_ = std::make_unique<FlightTable>(options_, &host_->clock, this, this, this);
  SimGangs::Outside outside;
  outside.renew = [this](const std::string& key, const std::string& id) { Renew(key, id); };
  outside.bring = [this](const std::string& key, const std::function<void()>& brought) {
    Bring(key, brought);
  };
  gangs_ = std::make_unique<SimGangs>(cluster_, host_, &link_, std::move(outside));
}

SimDaemon::~SimDaemon() = default;

void SimDaemon::Kill() {
  for (const auto& [id, deadline] : calls_) {
    cluster_->coverage->flights.Count(static_cast<size_t>(FlightInput::kKilled),
                                      static_cast<size_t>(table_->StateOfFlight(table_->FlightOfCall(id))));
  }
  dead_ = true;
  host_->trouble = cluster_->clock.now;
  host_->disk.ForgetMemory();
  cluster_->checks->Killed(*host_);
  life_ = nullptr;
}

// ---- Inputs ----------------------------------------------------------------------------------

void SimDaemon::Give(FlightInput input, State state, const std::function<void()>& call) {
  cluster_->coverage->flights.Count(static_cast<size_t>(input), static_cast<size_t>(state));
  ++cluster_->outcome.events;
  call();
  SetTimer();
  if (table_->tasks().workers_busy() != work_.size())
    cluster_->Fail(
        absl::StrCat("a slot leaks: ", table_->tasks().workers_busy(), " taken, ", work_.size(), " at work"));
}

void SimDaemon::GiveTier(TierInput input, FlightId flight, const std::function<void()>& call) {
  cluster_->coverage->tier_flights.Count(static_cast<size_t>(input),
                                         static_cast<size_t>(tier_flights_->StateOf(flight)));
  ++cluster_->outcome.events;
  call();
}

void SimDaemon::SetTimer() {
  const std::optional<MonotonicTime> next = table_->NextTick();
  if (!next.has_value() || *next >= timer_) return;
  timer_ = *next;
  const auto wait = std::chrono::duration_cast<microseconds>(*next - cluster_->clock.now);
  link_.At(std::max(microseconds(0), wait) + cluster_->draw.Upto(kTimerLate), [this] {
    timer_ = MonotonicTime::max();
    State state = State::kNone;
    for (const auto& [id, deadline] : calls_) {
      if (deadline <= cluster_->clock.now && table_->FlightOfCall(id) != 0)
        state = table_->StateOfFlight(table_->FlightOfCall(id));
    }
    Give(FlightInput::kTick, state, [this] { table_->Tick(); });
  });
}

void SimDaemon::Lookup(const SimQuestion& question, std::function<void(const Found&)> answer) {
  const v1::Hints hints = HintsOfSize(question.size);
  const KnownKeyPtr known = host_->disk.Known(question.key);
  const bool in_gang =
      !question.gang.empty() && !(upstream_ != nullptr && cluster_->Plant(ClusterFault::kOwnProgram, 50));
  if (in_gang && upstream_ != nullptr) {
    upstream_->LookUpForGang(question, [hints, answer = std::move(answer)](const KnownKeyPtr& told) {
      Found found;
      if (const KnownVariant* variant = ChooseVariant(*told, hints); variant != nullptr)
        found.variant = *variant;
      found.refusal = told->refusal;
      found.no_verdict = IsWithoutVerdict(told->refusal);
      answer(found);
    });
    return;
  }
  if (!in_gang) {
    Found found;
    if (const KnownVariant* variant = ChooseVariant(*known, hints); variant != nullptr) {
      found.variant = *variant;
      if (variant->durable && cluster_->draw.Chance(30)) Renew(question.key, variant->variant_id);
    } else {
      found.refusal = RefusalOf(*known, host_->clock.WallNow());
    }
    answer(found);
    return;
  }
  gangs_->Decide({"ns", question.gang, question.key}, hints,
                 ProposalOf(*known, hints, host_->clock.WallNow()),
                 [known, answer = std::move(answer)](const GangAnswer& decided) {
                   Found found;
                   if (decided.kind == GangAnswer::Kind::kVariant) {
                     const KnownVariant* variant = VariantById(*known, decided.variant_id);
                     if (variant != nullptr) found.variant = *variant;
                   }
                   found.refusal = decided.status;
                   found.no_verdict = decided.kind == GangAnswer::Kind::kUnknown;
                   answer(found);
                 });
}

void SimDaemon::Compile(CallId id, const SimQuestion& question, std::shared_ptr<Subscriber> subscriber) {
  FlightRequest request;
  request.ns = "ns";
  request.caller.tenant = "ns";
  request.caller.job = absl::StrCat("job", id % 5);
  request.compile_key = question.key;
  request.bytes.all = 1;
  FlightCall call;
  call.hints = HintsOfSize(question.size);
  call.deadline = question.deadline;
  call.subscriber = std::move(subscriber);
  if (!question.gang.empty() && upstream_ != nullptr) request.gang.set_id(question.gang);
  if (!question.gang.empty() && upstream_ == nullptr) {
    call.subscriber = std::make_shared<GangSubscriber>(
        gangs_.get(), GangName{"ns", question.gang, question.key}, call.hints, call.subscriber);
  }
  calls_[id] = std::max(question.deadline, cluster_->clock.now);  // some come too late
  const std::string slot = FlightSlot(question.key, request.gang, call.hints);
  Give(FlightInput::kCompile, table_->StateOfFlight(table_->FlightOfKey(slot)),
       [&] { table_->Compile(id, std::move(request), std::move(call)); });
}

void SimDaemon::Uploaded(CallId id, bool fails) {
  const State state = table_->StateOfFlight(table_->FlightOfCall(id));
  if (fails) {
    Give(FlightInput::kUploadFailed, state,
         [&] { table_->Uploaded(id, absl::InvalidArgumentError("graph_chunk: no zstd frame")); });
  } else {
    Give(FlightInput::kUploaded, state,
         [&] { table_->Uploaded(id, std::make_shared<const std::string>("graph")); });
  }
}

void SimDaemon::Cancel(CallId id) {
  const FlightId flight = table_->FlightOfCall(id);
  if (cluster_->Plant(ClusterFault::kCancelsAll, 50)) {
    const std::map<CallId, MonotonicTime> all = calls_;
    for (const auto& [other, deadline] : all) {
      if (other != id && table_->FlightOfCall(other) == flight) table_->Cancel(other);
    }
  }
  Give(FlightInput::kCancel, table_->StateOfFlight(flight), [&] { table_->Cancel(id); });
}

// ---- The store -------------------------------------------------------------------------------

void SimDaemon::Look(FlightId flight, const FlightRequest& request) {
  looking_.insert(flight);
  cluster_->stories->GoesOn(*host_, flight);
  const bool served_elsewhere = !request.gang.id().empty();  // then what is here has no say
  link_.At(cluster_->draw.Upto(milliseconds(3)), [this, flight, served_elsewhere, key = request.compile_key] {
    looking_.erase(flight);
    facts_[flight].known_at = cluster_->clock.now;
    Give(FlightInput::kHere, table_->StateOfFlight(flight), [&] {
      table_->Looked(flight, served_elsewhere ? std::make_shared<const KnownKey>() : host_->disk.Known(key));
    });
  });
}

void SimDaemon::Write(FlightId flight, std::shared_ptr<const Artifact> artifact) {
  storing_.insert(flight);
  cluster_->stories->GoesOn(*host_, flight);
  if (upstream_ == nullptr) GiveTier(TierInput::kMade, flight, [&] { tier_flights_->Made(flight); });
  link_.At(cluster_->draw.Upto(milliseconds(cluster_->draw.Chance(10) ? 800 : 8)),
           [this, flight, artifact = std::move(artifact)] {
             absl::Status stored = cluster_->draw.Chance(8) ? absl::ResourceExhaustedError("the disk is full")
                                                            : absl::OkStatus();
             host_->disk.Put(artifact, stored.ok(), cluster_->clock.now);
             if (cluster_->Plant(ClusterFault::kFalseDurable, 50)) stored = absl::OkStatus();
             if (cluster_->Plant(ClusterFault::kEarlyRelease, 100)) Release(flight);
             if (upstream_ == nullptr) PutIntoTier(artifact, [this, flight] { Release(flight); });
             storing_.erase(flight);
             Give(stored.ok() ? FlightInput::kStored : FlightInput::kNotStored, table_->StateOfFlight(flight),
                  [&] { table_->Stored(flight, stored); });
           });
}

void SimDaemon::PutIntoTier(std::shared_ptr<const Artifact> artifact, std::function<void()> ended) {
  const std::string& key = artifact->compile_key;
  writer_.Post([cluster = cluster_, key,
                artifact] { cluster->tier.At(key).programs[artifact->variant_id] = artifact; },
               std::move(ended));
}

void SimDaemon::Renew(const std::string& key, const std::string& variant_id) {
  if (upstream_ != nullptr) return;
  const auto of_key = host_->disk.variants.find(key);
  if (of_key == host_->disk.variants.end()) return;
  const auto found = of_key->second.find(variant_id);
  if (found != of_key->second.end()) PutIntoTier(found->second.artifact, nullptr);
}

// Into this daemon's store. False: it did not take all of it.
bool SimDaemon::Take(const std::string& key, const SimTier::Key& found) {
  ++cluster_->outcome.from_tier;
  if (!found.refusal.ok()) host_->disk.refusals[key] = found.refusal;
  if (cluster_->draw.Chance(5)) return false;
  for (const auto& [id, artifact] : found.programs)
    host_->disk.Put(artifact, /*durable=*/true, cluster_->clock.now);
  return true;
}

// ---- The tier --------------------------------------------------------------------------------

std::unique_ptr<TierFlights> SimDaemon::NewTierFlights() {
  TierFlights::Outside outside;
  // Limits are the link's, one by one.
  outside.look = [this](FlightId flight, const TierKeys::Name& key, MonotonicTime) {
    LookInTier(flight, key.compile_key);
  };
  outside.claim = [this](FlightId flight, const TierKeys::Name& key, MonotonicTime) {
    Claim(flight, key.compile_key);
  };
  outside.release = [this](FlightId flight) { ReleaseAfterWrites(flight); };
  outside.looked = [this](FlightId flight, KnownKeyPtr known, FlightTable::Where where) {
    Give(where == FlightTable::Where::kHere ? FlightInput::kHere : FlightInput::kEverywhere,
         table_->StateOfFlight(flight), [&] { table_->Looked(flight, std::move(known), where); });
  };
  return std::make_unique<TierFlights>(std::move(outside), &cluster_->clock, absl::Milliseconds(50));
}

void SimDaemon::LookFurther(FlightId flight, const FlightRequest& request, const v1::Hints& hints,
                            KnownKeyPtr known) {
  if (upstream_ != nullptr) {
    upstream_->LookFurther(flight, request, hints, std::move(known));
    return;
  }
  GiveTier(TierInput::kLookFurther, flight,
           [&] { tier_flights_->LookFurther(flight, request, hints, std::move(known)); });
}

void SimDaemon::Over(FlightId flight) {
  if (upstream_ != nullptr) return;
  GiveTier(TierInput::kOver, flight, [&] { tier_flights_->Over(flight); });
}

std::unique_ptr<SimUpstream> SimDaemon::NewUpstream(Host* farm) {
  SimUpstream::Outside outside;
  outside.looked = [this](FlightId flight, KnownKeyPtr known, FlightTable::Where where) {
    Give(where == FlightTable::Where::kHere         ? FlightInput::kHere
         : where == FlightTable::Where::kEverywhere ? FlightInput::kEverywhere
                                                    : FlightInput::kElsewhere,
         table_->StateOfFlight(flight), [&] { table_->Looked(flight, std::move(known), where); });
  };
  outside.ended = [this](TaskId id, FlightId flight, FlightNext next) {
    const bool made = next.outcome.has_value() && next.outcome->ok();
    Give(FlightInput::kEnded, table_->StateOfFlight(flight), [&] { table_->Ended(id, 0, false); });
    Give(!next.outcome.has_value() ? FlightInput::kCameBack
         : made                    ? FlightInput::kMade
                                   : FlightInput::kRefused,
         table_->StateOfFlight(flight), [&] { table_->Advanced(flight, std::move(next)); });
    if (table_->StateOfFlight(flight) == State::kWaiting) cluster_->stories->GoesOn(*host_, flight);
  };
  outside.deadline = [this](FlightId flight) { return table_->DeadlineOf(flight); };
  return std::make_unique<SimUpstream>(cluster_, host_, farm, &link_, std::move(outside));
}

void SimDaemon::LookInTier(FlightId flight, const std::string& key) {
  FlightFacts& facts = facts_[flight];
  if (facts.key.empty()) {
    facts.key = key;
    facts.began = cluster_->clock.now;
  }
  asked_tier_[flight] = cluster_->clock.now;
  auto found = std::make_shared<SimTier::Key>();
  link_.Ask(
      TierLink::Kind::kLook,
      [this, key, found](TierLink::Fate fate) {
        if (fate != TierLink::Fate::kCut) *found = cluster_->tier.At(key);
      },
      [this, flight, key, found](const absl::Status& told) {
        asked_tier_.erase(flight);
        const auto& here = host_->disk.variants[key];
        const bool news =
            (!found->refusal.ok() && !host_->disk.refusals.contains(key)) ||
            std::any_of(found->programs.begin(), found->programs.end(), [&](const auto& program) {
              const auto known = here.find(program.first);
              return known == here.end() || !known->second.durable;
            });
        if (!told.ok()) {
          if (tier_flights_->StateOf(flight) != TierFlights::State::kNone) {
            facts_[flight].without = true;
            cluster_->checks->GoesWithout(*host_, facts_[flight], /*patience_is_over=*/false);
          }
          GiveTier(TierInput::kAway, flight, [&] { tier_flights_->Missed(flight, told, nullptr); });
          return;
        }
        if (!news) {
          facts_[flight].known_at = cluster_->clock.now;
          GiveTier(TierInput::kNothing, flight, [&] {
            tier_flights_->Missed(flight, absl::NotFoundError("no more"), host_->disk.Known(key));
          });
          return;
        }
        asked_tier_[flight] = cluster_->clock.now;
        link_.At(cluster_->draw.Upto(milliseconds(30)), [this, flight, key, found] {
          asked_tier_.erase(flight);
          const bool whole = Take(key, *found);
          facts_[flight].known_at = cluster_->clock.now;
          facts_[flight].in_part = facts_[flight].in_part || !whole;
          GiveTier(whole ? TierInput::kTaken : TierInput::kTakenInPart, flight,
                   [&] { tier_flights_->Taken(flight, host_->disk.Known(key), whole); });
        });
      });
}

void SimDaemon::Claim(FlightId flight, const std::string& key) {
  claims_.Claim(flight, key, [this, flight](ClaimTable::Answer answer) {
    const bool ours = answer == ClaimTable::Answer::kOurs;
    if (ours && facts_[flight].ours_at == MonotonicTime::min()) facts_[flight].ours_at = cluster_->clock.now;
    cluster_->stories->AnswerComes(ours ? SimStories::Kind::kLeftAsOurs : SimStories::Kind::kLeftAsNobodys,
                                   *host_, flight);
    link_.At(cluster_->draw.Upto(milliseconds(1)), [this, flight, answer, ours] {
      FlightFacts& facts = facts_[flight];
      if (!ours && tier_flights_->StateOf(flight) != TierFlights::State::kNone) {
        facts.without = true;
        cluster_->checks->GoesWithout(
            *host_, facts, cluster_->clock.now >= facts.began + absl::ToChronoMicroseconds(kClaimPatience));
      }
      GiveTier(ours ? TierInput::kOurs : TierInput::kNobodys, flight,
               [&] { tier_flights_->Claimed(flight, answer); });
    });
  });
}

// As SharedTier's.
void SimDaemon::ReleaseAfterWrites(FlightId flight) {
  if (claims_.IsOurs(flight)) {
    writer_.Post(nullptr, [this, flight] { Release(flight); });
  } else {
    Release(flight);
  }
}

void SimDaemon::Release(FlightId flight) {
  facts_[flight].token_over = cluster_->clock.now;
  claims_.Release(flight);
  cluster_->checks->Released(host_, flight);
}

void SimDaemon::Bring(const std::string& key, const std::function<void()>& brought) {
  auto found = std::make_shared<SimTier::Key>();
  link_.Ask(
      TierLink::Kind::kLook,
      [this, key, found](TierLink::Fate fate) {
        if (fate != TierLink::Fate::kCut) *found = cluster_->tier.At(key);
      },
      [this, key, found, brought](const absl::Status& told) {
        link_.At(cluster_->draw.Upto(milliseconds(5)), [this, key, found, brought, told] {
          if (told.ok()) Take(key, *found);
          brought();
        });
      });
}

// ---- Work ------------------------------------------------------------------------------------

void SimDaemon::Start(TaskId id, FlightId flight, FlightRequestPtr request, const FlightTask& task) {
  ++cluster_->outcome.events;
  if (task.kind == TaskQueue::Kind::kForward) {
    upstream_->Forward(id, flight, std::move(request));
    return;
  }
  cluster_->checks->Begins(host_, flight, *request);
  work_[id] = {flight, std::move(request)};
  Draw& draw = cluster_->draw;
  const int kind = draw.Below(100);
  const microseconds takes = kind < 60   ? milliseconds(100) + draw.Upto(milliseconds(1500))
                             : kind < 97 ? milliseconds(1500) + draw.Upto(milliseconds(16'000))
                                         : milliseconds(30'000) + draw.Upto(milliseconds(130'000));
  link_.At(takes, [this, id] { EndWork(id); });
}

void SimDaemon::Stop(FlightId flight) {
  if (upstream_ != nullptr) upstream_->Stop(flight);
  cluster_->checks->Ends(host_, flight, nullptr);  // another may begin
  for (auto& [id, work] : work_) {
    if (work.flight != flight) continue;
    work.stopped = true;
    link_.At(cluster_->draw.Upto(milliseconds(50)), [this, id = id] { EndWork(id); });
  }
}

void SimDaemon::EndWork(TaskId id) {
  const auto found = work_.find(id);
  if (found == work_.end()) return;
  const Work work = found->second;
  work_.erase(found);
  const FlightId flight = work.flight;
  FlightNext next;
  next.outcome =
      work.stopped ? absl::CancelledError("nobody waits for the answer") : OutcomeOf(*work.request, flight);
  const bool made = next.outcome->ok();
  cluster_->checks->Ends(host_, flight, made ? **next.outcome : nullptr);
  Give(FlightInput::kEnded, table_->StateOfFlight(flight), [&] { table_->Ended(id, 0.008, true); });
  Give(made ? FlightInput::kMade : FlightInput::kRefused, table_->StateOfFlight(flight),
       [&] { table_->Advanced(flight, std::move(next)); });
}

absl::StatusOr<std::shared_ptr<const Artifact>> SimDaemon::OutcomeOf(const FlightRequest& request,
                                                                     FlightId flight) {
  const std::string& key = request.compile_key;
  if (IsRefused(key)) {
    // Kept, and told to the tier, before its callers are.
    const absl::Status refusal = absl::UnimplementedError(absl::StrCat("no ", key));
    host_->disk.refusals[key] = refusal;
    if (upstream_ == nullptr)
      writer_.Post([cluster = cluster_, key, refusal] { cluster->tier.At(key).refusal = refusal; });
    return refusal;
  }
  if (cluster_->draw.Chance(12))
    return absl::DeadlineExceededError(absl::StrCat("too slow ", number_, ".", flight));
  const int first = static_cast<int>(request.hints.values(0)) / kWidth * kWidth;
  auto artifact = std::make_shared<Artifact>();
  artifact->compile_key = key;
  artifact->variant_id = absl::StrCat("a variant of ", key, " by ", number_, ".", flight);
  v1::Symbol* symbol = artifact->guards.add_symbols();
  symbol->set_kind(v1::SYMBOL_INT);
  // Daemons' variants are of several widths.
  symbol->set_min(first - cluster_->draw.Below(2) * kWidth);
  symbol->set_max(first + kWidth - 1);
  v1::Manifest manifest;
  manifest.set_request_key(key);
  manifest.set_variant_id(artifact->variant_id);
  *manifest.mutable_guards() = artifact->guards;
  artifact->signed_manifest.set_manifest(manifest.SerializeAsString());
  return artifact;
}

// ---- What must hold --------------------------------------------------------------------------

// Empty: something is coming for it.
std::string SimDaemon::WaitsFor(FlightId flight) const {
  bool comes = false;
  switch (table_->StateOfFlight(flight)) {
    case State::kLooking: {
      const TierFlights::State state = tier_flights_->StateOf(flight);
      const auto asked = asked_tier_.find(flight);
      comes = looking_.contains(flight) || (upstream_ != nullptr && upstream_->Has(flight)) ||
              state == TierFlights::State::kClaiming ||
              (asked != asked_tier_.end() && cluster_->clock.now < asked->second + kLookMax);
      break;
    }
    case State::kUploading: comes = true; break;  // or its patience ends
    case State::kQueued:                          // for a worker, or for a place at the upstream
    case State::kWaiting: comes = upstream_ != nullptr || work_.size() >= options_.tasks.workers; break;
    case State::kRunning:
      comes = std::any_of(work_.begin(), work_.end(),
                          [&](const auto& work) { return work.second.flight == flight; }) ||
              (upstream_ != nullptr && upstream_->Has(flight));
      break;
    case State::kStoring: comes = storing_.contains(flight); break;
    case State::kNone:
    case State::kDying: break;
  }
  return comes ? "" : FlightStateName(table_->StateOfFlight(flight));
}

std::set<std::string> SimDaemon::ClaimsAwaited() const {
  std::set<std::string> keys;
  for (const auto& [flight, facts] : facts_) {
    if (tier_flights_->StateOf(flight) == TierFlights::State::kClaiming && !claims_.IsOurs(flight))
      keys.insert(facts.key);
  }
  return keys;
}

void SimDaemon::Check() {
  std::erase_if(calls_, [&](const auto& call) { return table_->FlightOfCall(call.first) == 0; });
  for (const auto& [id, deadline] : calls_) {
    if (deadline + kTimerLate < cluster_->clock.now) cluster_->Fail("a caller waits beyond its deadline");
    const std::string dead = WaitsFor(table_->FlightOfCall(id));
    if (!dead.empty()) cluster_->Fail(absl::StrCat("a caller waits for the dead: a flight that is ", dead));
  }
}

void SimDaemon::CheckAtRest() {
  if (table_->calls() + table_->flights() + table_->places() + table_->begun() +
          table_->tasks().waiting_for_workers() + work_.size() !=
      0)
    cluster_->Fail("something is left when all is over");
  if (table_->NextTick().has_value()) cluster_->Fail("a timer is left when all is over");
  if (upstream_ != nullptr && !upstream_->empty()) cluster_->Fail("a call at the upstream is left");
  if (!claims_.empty()) cluster_->Fail("a claim is left when all is over");
}

}  // namespace kiln::sim
