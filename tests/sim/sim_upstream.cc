#include "tests/sim/sim_upstream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/flight/gang_verdict.h"
#include "server/flight/refusals.h"
#include "tests/sim/sim_daemon.h"
#include "tests/sim/sim_stories.h"

namespace kiln::sim {
namespace {

constexpr milliseconds kWay(20);          // one way, at most
constexpr milliseconds kWatchEvery(500);  // until who is cut off is found

std::string SlotOf(const FlightRequest& request) {
  return FlightSlot(request.compile_key, request.gang, request.hints);
}

absl::Status GangUnknown(const absl::Status& why) {
  return WithoutVerdict(absl::UnavailableError(
      absl::StrCat("the upstream does not say what the gang is served: ", why.message())));
}

}  // namespace

// One call at the upstream, as both ends see it.
struct SimUpstream::Call final : public Subscriber, public std::enable_shared_from_this<Call> {
  SimUpstream* from = nullptr;
  FlightId flight = 0;
  ForwardTable::Turn turn = 0;
  MonotonicTime deadline;
  CallId id = 0;  // there
  uint64_t life = 0;
  std::string variant_id;
  bool asked = false;
  bool ended = false;      // there
  bool lost = false;       // what is said of that; the watch tells
  bool cancelled = false;  // by us
  bool over = false;       // here
  ForwardedEnd end;

  void Event(const FlightEventPtr& event) override {
    const v1::CompileEvent& message = event->message();
    if (message.has_done() && message.done().has_manifest()) {
      end.manifest = message.done().manifest();
      variant_id = event->manifest().variant_id();
    }
    if (message.has_failed()) {
      end.verdict =
          absl::Status(static_cast<absl::StatusCode>(message.failed().code()), message.failed().reason());
      end.without_gang = message.failed().no_verdict();
    }
  }
  void Graph(Upload wanted) override {
    if (wanted == Upload::kNow) from->Upload(shared_from_this());
  }
  void End(const absl::Status& status) override {
    ended = true;
    end.call = status;
    if (const auto pause = PushbackOf(status); pause.has_value()) end.come_again = absl::FromChrono(*pause);
    from->link_->At(from->cluster_->draw.Upto(kWay), [self = shared_from_this()] {
      self->lost = self->from->host_->cut;
      if (!self->lost) self->from->End(self, self->end);
    });
  }
};

SimUpstream::SimUpstream(Cluster* cluster, Host* host, Host* farm, TierLink* link, Outside outside)
    : cluster_(cluster),
      host_(host),
      farm_(farm),
      link_(link),
      outside_(std::move(outside)),
      compiles_here_(cluster->draw.Chance(70)),
      table_(compiles_here_, TableOutside()) {}

void SimUpstream::Give(ForwardInput input, FlightId flight, const std::function<void()>& call) {
  cluster_->coverage->forwards.Count(static_cast<size_t>(input), static_cast<size_t>(table_.StateOf(flight)));
  ++cluster_->outcome.events;
  call();
}

bool SimUpstream::Has(FlightId flight) const {
  const ForwardTable::State state = table_.StateOf(flight);
  const auto call = calls_.lower_bound({flight, 0});
  const bool calls = call != calls_.end() && call->first.first == flight;
  if (state == ForwardTable::State::kCalling) return calls;
  if (state == ForwardTable::State::kEnding) {
    return calls || std::any_of(alarms_.begin(), alarms_.end(),
                                [flight](const auto& alarm) { return alarm.second.flight == flight; });
  }
  return state != ForwardTable::State::kNone || looking_.contains(flight);
}

// ---- Looking up ------------------------------------------------------------------------------

void SimUpstream::LookFurther(FlightId flight, const FlightRequest& request, const v1::Hints& hints,
                              KnownKeyPtr known) {
  looking_.insert(flight);
  SimQuestion question;
  question.key = request.compile_key;
  question.size = static_cast<int>(hints.values(0));
  question.gang = request.gang.id();
  if (host_->cut && compiles_here_)
    cluster_->stories->AnswerComes(SimStories::Kind::kLeftAsAway, *host_, flight);
  Ask(question, known, [this, flight](KnownKeyPtr told, FlightTable::Where where) {
    looking_.erase(flight);
    outside_.looked(flight, std::move(told), where);
  });
}

void SimUpstream::LookUpForGang(const SimQuestion& question, std::function<void(const KnownKeyPtr&)> answer) {
  Ask(question, std::make_shared<const KnownKey>(),
      [answer = std::move(answer)](const KnownKeyPtr& told, FlightTable::Where) { answer(told); });
}

void SimUpstream::Ask(const SimQuestion& question, const KnownKeyPtr& known, const Told& told) {
  link_->At(cluster_->draw.Upto(kWay), [this, question, known, told] {
    if (host_->cut || farm_->daemon == nullptr) {
      Away(question, absl::UnavailableError("nobody answers"), known, told);
      return;
    }
    auto heard = std::make_shared<bool>(false);
    farm_->daemon->Lookup(question, [this, question, known, told, heard](const SimDaemon::Found& found) {
      if (std::exchange(*heard, true)) return;
      if (found.variant.has_value()) {
        const auto& there = farm_->disk.variants[question.key].at(found.variant->variant_id);
        host_->disk.Put(there.artifact, /*durable=*/true, cluster_->clock.now);
        KnownKeyPtr here = host_->disk.Known(question.key);
        if (!question.gang.empty()) {  // that variant and no other
          auto served = std::make_shared<KnownKey>();
          served->variants.push_back(*VariantById(*here, found.variant->variant_id));
          here = std::move(served);
        }
        told(std::move(here), FlightTable::Where::kHere);
      } else if (!found.refusal.ok()) {
        auto refused = std::make_shared<KnownKey>(*known);
        refused->refusal = found.no_verdict ? WithoutVerdict(found.refusal) : found.refusal;
        told(std::move(refused), FlightTable::Where::kHere);
      } else {
        told(known, FlightTable::Where::kElsewhere);
      }
    });
    // A daemon that dies answers nobody.
    WatchLookup(question, known, told, heard);
  });
}

// The transport finds who is cut off or dead.
void SimUpstream::WatchLookup(const SimQuestion& question, const KnownKeyPtr& known, const Told& told,
                              const std::shared_ptr<bool>& heard) {
  const SimDaemon* const daemon = farm_->daemon.get();
  const uint64_t life = daemon == nullptr ? 0 : daemon->life();
  link_->At(kWatchEvery, [this, question, known, told, heard, life] {
    if (*heard) return;
    if (farm_->daemon != nullptr && farm_->daemon->life() == life) {
      WatchLookup(question, known, told, heard);
      return;
    }
    *heard = true;
    Away(question, absl::UnavailableError("the connection broke"), known, told);
  });
}

// As UpstreamFlights'.
void SimUpstream::Away(const SimQuestion& question, const absl::Status& why, const KnownKeyPtr& known,
                       const Told& told) {
  if (question.gang.empty() && compiles_here_) {
    told(known, FlightTable::Where::kEverywhere);
    return;
  }
  auto refused = std::make_shared<KnownKey>(*known);
  refused->refusal = question.gang.empty() ? why : GangUnknown(why);
  told(std::move(refused), FlightTable::Where::kHere);
}

// ---- Compiling there -------------------------------------------------------------------------

ForwardTable::Outside SimUpstream::TableOutside() {
  ForwardTable::Outside outside;
  outside.pack = [this](FlightId flight) {
    link_->At(cluster_->draw.Upto(milliseconds(5)), [this, flight] {
      Give(ForwardInput::kPacked, flight, [&] { table_.Packed(flight, cluster_->clock.now); });
    });
  };
  outside.call = [this](FlightId flight, ForwardTable::Turn turn, MonotonicTime deadline) {
    Begin(flight, turn, deadline);
    if (cluster_->Plant(ClusterFault::kForwardsTwice, 50)) Begin(flight, turn, deadline);
  };
  outside.cancel = [this](FlightId flight) {
    for (auto at = calls_.lower_bound({flight, 0}); at != calls_.end() && at->first.first == flight; ++at) {
      const CallPtr call = at->second;
      if (std::exchange(call->cancelled, true)) continue;
      if (IsThere(*call)) farm_->daemon->Cancel(call->id);
      link_->At(cluster_->draw.Upto(kWay), [this, call] {
        ForwardedEnd end;
        end.call = absl::CancelledError("cancelled");
        End(call, std::move(end));
      });
    }
  };
  outside.remind = [this](FlightId flight, ForwardTable::Turn turn, MonotonicTime then) {
    SetAlarm(flight, std::chrono::ceil<microseconds>(then - cluster_->clock.now), [this, flight, turn] {
      Give(ForwardInput::kDue, flight, [&] { table_.Due(flight, turn, cluster_->clock.now); });
    });
  };
  outside.wait = [this](FlightId flight, absl::Duration pause) {
    SetAlarm(flight, absl::ToChronoMicroseconds(pause), [this, flight] {
      Give(ForwardInput::kWaited, flight, [&] { table_.Waited(flight, cluster_->clock.now); });
    });
  };
  outside.hurry = [this](FlightId flight) {
    for (const auto& [id, alarm] : alarms_) {
      if (alarm.flight == flight) link_->At(microseconds(0), [this, id = id] { Ring(id); });
    }
  };
  outside.answered = [] {};
  outside.take = [this](FlightId flight, const ForwardedEnd& end) { Take(flight, end); };
  outside.failed = [](const absl::Status& why) {
    return absl::FailedPreconditionError(absl::StrCat("the upstream is not to be had: ", why.message()));
  };
  outside.unknown = GangUnknown;
  outside.deadline = [this](FlightId flight) { return outside_.deadline(flight); };
  outside.ended = [this](TaskId task, FlightId flight, FlightNext next) {
    requests_.erase(flight);
    outside_.ended(task, flight, std::move(next));
  };
  outside.jitter = [this](absl::Duration pause) {
    return pause + absl::Milliseconds(cluster_->draw.Below(500));
  };
  return outside;
}

void SimUpstream::Forward(TaskId task, FlightId flight, FlightRequestPtr request) {
  ++cluster_->outcome.forwards;
  const auto callers =
      request->gang.id().empty() ? ForwardTable::Callers::kAny : ForwardTable::Callers::kGang;
  if (callers == ForwardTable::Callers::kAny && compiles_here_) cluster_->stories->Forwards(host_, flight);
  requests_[flight] = std::move(request);
  Give(ForwardInput::kForward, flight, [&] { table_.Forward(task, flight, callers); });
}

void SimUpstream::Stop(FlightId flight) {
  if (!requests_.contains(flight)) return;
  Give(ForwardInput::kStop, flight, [&] { table_.Stop(flight); });
}

bool SimUpstream::IsThere(const Call& call) const {
  return !call.ended && farm_->daemon != nullptr && farm_->daemon->life() == call.life;
}

void SimUpstream::SetAlarm(FlightId flight, microseconds delay, std::function<void()> rings) {
  const uint64_t id = ++last_alarm_;
  alarms_[id] = {flight, std::move(rings)};
  link_->At(delay, [this, id] { Ring(id); });
}

void SimUpstream::Ring(uint64_t alarm) {
  auto rang = alarms_.extract(alarm);
  if (!rang.empty()) rang.mapped().rings();
}

void SimUpstream::Begin(FlightId flight, ForwardTable::Turn turn, MonotonicTime deadline) {
  auto call = std::make_shared<Call>();
  call->from = this;
  call->flight = flight;
  call->turn = turn;
  call->deadline = deadline;
  call->id = ++cluster_->last_call;
  // One flight is one call there, whoever waits for it here; or two turns, of which one takes over.
  for (const auto& [at, out] : calls_) {
    const auto [other, others_turn] = at;
    if (other == flight && others_turn != turn) continue;
    const FlightRequest &request = *requests_.at(flight),
                        *others = requests_.contains(other) ? requests_.at(other).get() : nullptr;
    if (others != nullptr && SlotOf(*others) == SlotOf(request) && !out->over && !out->cancelled)
      cluster_->Fail(absl::StrCat("a graph is forwarded twice: ", requests_.at(flight)->compile_key));
  }
  calls_[{flight, turn}] = call;
  link_->At(cluster_->draw.Upto(kWay), [this, call] { Compile(call); });
}

void SimUpstream::Compile(const CallPtr& call) {
  if (call->over || call->cancelled) return;
  if (host_->cut || farm_->daemon == nullptr) {
    ForwardedEnd end;
    end.call = absl::UnavailableError("nobody answers");
    End(call, std::move(end));
    return;
  }
  call->life = farm_->daemon->life();
  SimQuestion question;
  const FlightRequest& request = *requests_.at(call->flight);
  question.key = request.compile_key;
  question.size = static_cast<int>(request.hints.values(0));
  question.deadline = call->deadline;
  question.gang = request.gang.id();
  farm_->daemon->Compile(call->id, question, call);
  Watch(call);
}

void SimUpstream::Upload(const CallPtr& call) {
  if (call->asked) cluster_->Fail("a graph is uploaded twice to the upstream");
  call->asked = true;
  link_->At(cluster_->draw.Upto(kWay), [this, call] {
    if (IsThere(*call) && !host_->cut) farm_->daemon->Uploaded(call->id, /*fails=*/false);
  });
}

// The transport finds who is cut off or dead, and so does the upstream.
void SimUpstream::Watch(const CallPtr& call) {
  link_->At(kWatchEvery, [this, call] {
    if (call->over) return;
    const bool dead = farm_->daemon == nullptr || farm_->daemon->life() != call->life;
    if (!dead && !host_->cut && !call->lost) {
      Watch(call);
      return;
    }
    if (IsThere(*call)) farm_->daemon->Cancel(call->id);
    ForwardedEnd end;
    end.call = absl::UnavailableError("the connection broke");
    End(call, std::move(end));
  });
}

void SimUpstream::End(const CallPtr& call, ForwardedEnd end) {
  if (std::exchange(call->over, true)) return;
  if (cluster_->Plant(ClusterFault::kForgottenForward, 10)) return;
  if (absl::IsCancelled(end.call) && !call->cancelled)
    cluster_->Fail("a call at the upstream is cancelled for what another did");
  const ForwardInput input = end.manifest.has_value()              ? ForwardInput::kProgram
                             : !end.verdict.ok()                   ? ForwardInput::kVerdict
                             : absl::IsResourceExhausted(end.call) ? ForwardInput::kFull
                             : absl::IsDeadlineExceeded(end.call)  ? ForwardInput::kLate
                             : absl::IsCancelled(end.call)         ? ForwardInput::kCancelled
                                                                   : ForwardInput::kBroken;
  calls_.erase({call->flight, call->turn});
  Give(input, call->flight,
       [&] { table_.CallEnded(call->flight, call->turn, std::move(end), cluster_->clock.now); });
}

void SimUpstream::Take(FlightId flight, const ForwardedEnd& end) {
  v1::Manifest manifest;
  manifest.ParseFromString(end.manifest->manifest());
  const bool goes_on_here = requests_.at(flight)->gang.id().empty() && compiles_here_;
  const bool gone =
      goes_on_here && cluster_->stories->AnswerComes(SimStories::Kind::kLeftAsTaken, *host_, flight);
  link_->At(cluster_->draw.Upto(milliseconds(60)), [this, flight, manifest, gone] {
    // Fetched from there, as long as it is there.
    const auto& there = farm_->disk.variants[manifest.request_key()];
    const auto found = there.find(manifest.variant_id());
    const bool fetched = !gone && found != there.end() && !host_->cut && farm_->daemon != nullptr;
    absl::StatusOr<std::shared_ptr<const Artifact>> taken = absl::UnavailableError("it is gone");
    if (fetched) taken = found->second.artifact;
    Give(fetched ? ForwardInput::kTaken : ForwardInput::kNotTaken, flight,
         [&] { table_.Taken(flight, std::move(taken)); });
  });
}

}  // namespace kiln::sim
