#include "tests/sim/sim_upstream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/flight/gang_verdict.h"
#include "server/flight/refusals.h"
#include "tests/sim/sim_daemon.h"

namespace kiln::sim {
namespace {

constexpr milliseconds kWay(20);          // one way, at most
constexpr milliseconds kWatchEvery(500);  // until who is cut off is found

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
  bool cancelled = false;  // by us
  bool over = false;       // here
  ForwardedEnd end;

  void Event(const FlightEventPtr& event) override {
    const v1::CompileEvent& message = event->message();
    if (message.has_done() && message.done().has_manifest()) {
      end.manifest = message.done().manifest();
      variant_id = event->manifest().variant_id();
    }
    if (message.has_failed())
      end.verdict =
          absl::Status(static_cast<absl::StatusCode>(message.failed().code()), message.failed().reason());
  }
  void Graph(Upload wanted) override {
    if (wanted == Upload::kNow) from->Upload(shared_from_this());
  }
  void End(const absl::Status& status) override {
    ended = true;
    end.call = status;
    if (const auto pause = PushbackOf(status); pause.has_value()) end.come_again = absl::FromChrono(*pause);
    from->link_->At(from->cluster_->draw.Upto(kWay), [self = shared_from_this()] {
      // Of who is cut off by now the watch tells.
      if (!self->from->host_->cut) self->from->End(self, self->end);
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
  const std::string key = request.compile_key;
  SimQuestion question;
  question.key = key;
  question.size = static_cast<int>(hints.values(0));
  link_->At(cluster_->draw.Upto(kWay), [this, flight, question, known] {
    looking_.erase(flight);
    if (host_->cut || farm_->daemon == nullptr) {
      Away(flight, absl::UnavailableError("nobody answers"), known);
      return;
    }
    farm_->daemon->Lookup(question, [this, flight, question, known](const SimDaemon::Found& found) {
      if (found.variant.has_value()) {
        const auto& there = farm_->disk.variants[question.key].at(found.variant->variant_id);
        host_->disk.Put(there.artifact, /*durable=*/true, cluster_->clock.now);
        outside_.looked(flight, host_->disk.Known(question.key), FlightTable::Where::kHere);
      } else if (!found.refusal.ok()) {
        auto refused = std::make_shared<KnownKey>(*known);
        refused->refusal = found.refusal;
        outside_.looked(flight, std::move(refused), FlightTable::Where::kHere);
      } else {
        outside_.looked(flight, known, FlightTable::Where::kElsewhere);
      }
    });
  });
}

// As UpstreamFlights'.
void SimUpstream::Away(FlightId flight, const absl::Status& why, const KnownKeyPtr& known) {
  if (compiles_here_) {
    outside_.looked(flight, known, FlightTable::Where::kEverywhere);
    return;
  }
  auto refused = std::make_shared<KnownKey>(*known);
  refused->refusal = why;
  outside_.looked(flight, std::move(refused), FlightTable::Where::kHere);
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
  outside.unknown = [](const absl::Status& why) {
    return WithoutVerdict(absl::UnavailableError(
        absl::StrCat("the upstream does not say what the gang is served: ", why.message())));
  };
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
    if (requests_.contains(other) && requests_.at(other)->compile_key == requests_.at(flight)->compile_key &&
        !out->over && !out->cancelled)
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
    if (!dead && !host_->cut && !(call->ended && !call->over)) {
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
  link_->At(cluster_->draw.Upto(milliseconds(60)), [this, flight, manifest] {
    // Fetched from there, as long as it is there.
    const auto& there = farm_->disk.variants[manifest.request_key()];
    const auto found = there.find(manifest.variant_id());
    const bool fetched = found != there.end() && !host_->cut && farm_->daemon != nullptr;
    absl::StatusOr<std::shared_ptr<const Artifact>> taken = absl::UnavailableError("it is gone");
    if (fetched) taken = found->second.artifact;
    Give(fetched ? ForwardInput::kTaken : ForwardInput::kNotTaken, flight,
         [&] { table_.Taken(flight, std::move(taken)); });
  });
}

}  // namespace kiln::sim
