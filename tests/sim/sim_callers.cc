#include "tests/sim/sim_callers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "compiler/graph/guards.h"
#include "server/flight/refusals.h"
#include "tests/sim/cluster_checks.h"

namespace kiln::sim {
namespace {

// Of a hundred uploads.
constexpr int kStalls = 1;
constexpr int kStallsForwarded = 10;  // where a flight may come back and wait again
constexpr int kFails = 4;
constexpr int kStalledFails = 40;
constexpr int kGoesOn = 70;  // when its flight does
constexpr milliseconds kStall(20'000);

}  // namespace

struct SimCallers::Caller {
  size_t number = 0;
  SimQuestion question;
  Host* host = nullptr;
  AttemptPtr attempt;  // null: between two, or over
  int answers = 0;
  bool left = false;
  bool over = false;
};

struct SimCallers::Attempt final : public Subscriber, public std::enable_shared_from_this<Attempt> {
  SimCallers* callers = nullptr;
  Caller* caller = nullptr;
  Host* host = nullptr;
  uint64_t life = 0;  // of the host's daemon
  CallId id = 0;
  bool compiles = false;
  std::string variant_id;  // that it was told
  bool uploads = false;    // its graph is on its way
  bool gone = false;       // nobody hears what is said

  void Event(const FlightEventPtr& event) override { callers->Told(this, event->message()); }
  void Graph(Upload wanted) override {
    if (wanted == Upload::kNow) callers->Upload(shared_from_this());
  }
  void End(const absl::Status& status) override { callers->Ended(this, status); }
};

SimCallers::SimCallers(Cluster* cluster) : cluster_(cluster) {}

SimCallers::~SimCallers() = default;

// ---- Calls -----------------------------------------------------------------------------------

void SimCallers::Arrive(SimQuestion question, Host* host) {
  auto made = std::make_unique<Caller>();
  Caller* const caller = made.get();
  caller->number = callers_.size() + 1;
  caller->question = std::move(question);
  caller->host = host;
  callers_.push_back(std::move(made));
  ++cluster_->outcome.requests;
  Draw& draw = cluster_->draw;
  if (draw.Chance(15))
    cluster_->At(draw.Upto(seconds(6)), [this, caller] { Leave(caller, /*comes_back=*/false); });
  Ask(caller);
}

bool SimCallers::Reaches(const Attempt& attempt) const {
  return !attempt.gone && attempt.host->daemon != nullptr && attempt.host->daemon->life() == attempt.life;
}

void SimCallers::Ask(Caller* caller) {
  if (caller->over || caller->left) return;
  if (caller->host->daemon == nullptr) {
    Leave(caller, /*comes_back=*/true);
    return;
  }
  auto attempt = std::make_shared<Attempt>();
  attempt->callers = this;
  attempt->caller = caller;
  attempt->host = caller->host;
  attempt->life = caller->host->daemon->life();
  attempt->id = ++cluster_->last_call;
  caller->attempt = attempt;
  caller->host->daemon->Lookup(caller->question,
                               [this, attempt](const SimDaemon::Found& found) { Found(attempt, found); });
}

void SimCallers::Found(const AttemptPtr& attempt, const SimDaemon::Found& found) {
  ++cluster_->outcome.events;
  if (!Reaches(*attempt)) return;
  if (found.variant.has_value()) {
    v1::LookupReply reply;
    reply.ParseFromString(*found.variant->reply);
    v1::Manifest manifest;
    manifest.ParseFromString(reply.hit().manifest().manifest());
    Answer(attempt.get(), manifest, found.variant->durable);
    ++cluster_->outcome.hits;
    Ended(attempt.get(), absl::OkStatus());
  } else if (!found.refusal.ok()) {
    Refuse(attempt.get(), found.refusal, found.no_verdict);
    Ended(attempt.get(), absl::OkStatus());
  } else {
    cluster_->At(cluster_->draw.Upto(milliseconds(2)), [this, attempt] {
      if (!Reaches(*attempt)) return;
      attempt->compiles = true;
      attempt->host->daemon->Compile(attempt->id, attempt->caller->question, attempt);
    });
  }
}

void SimCallers::Upload(const AttemptPtr& attempt) {
  Draw& draw = cluster_->draw;
  attempt->uploads = true;
  if (draw.Chance(attempt->host->forwards ? kStallsForwarded : kStalls)) {
    stalled_.push_back(attempt);
    cluster_->At(draw.Upto(kStall), [this, attempt] { EndUpload(attempt, kStalledFails); });
    return;
  }
  const bool slow = draw.Chance(10);
  cluster_->At(slow ? draw.Upto(milliseconds(draw.Chance(50) ? 150 : 3000)) : draw.Upto(milliseconds(6)),
               [this, attempt] { EndUpload(attempt, kFails); });
}

void SimCallers::EndUpload(const AttemptPtr& attempt, int fails) {
  if (!std::exchange(attempt->uploads, false) || !Reaches(*attempt)) return;
  attempt->host->daemon->Uploaded(attempt->id, cluster_->draw.Chance(fails));
}

std::vector<SimCallers::AttemptPtr> SimCallers::StalledOf(const Host& host, FlightId flight) {
  std::erase_if(stalled_, [](const AttemptPtr& attempt) { return !attempt->uploads; });
  std::vector<AttemptPtr> stalled;
  for (const AttemptPtr& attempt : stalled_) {
    if (attempt->host == &host && Reaches(*attempt) &&
        host.daemon->table().FlightOfCall(attempt->id) == flight)
      stalled.push_back(attempt);
  }
  return stalled;
}

void SimCallers::EndUploads(const Host& host, FlightId flight) {
  for (const AttemptPtr& attempt : StalledOf(host, flight)) {
    if (cluster_->draw.Chance(kGoesOn))
      cluster_->At(cluster_->draw.Upto(milliseconds(3)),
                   [this, attempt] { EndUpload(attempt, kStalledFails); });
  }
}

// Its daemon hears of it, sooner or later, where it lives.
void SimCallers::Leave(Caller* caller, bool comes_back) {
  if (caller->over || caller->left) return;
  Draw& draw = cluster_->draw;
  if (const AttemptPtr attempt = std::exchange(caller->attempt, nullptr); attempt != nullptr) {
    const bool told = Reaches(*attempt) && attempt->compiles;
    attempt->gone = true;
    if (told) {
      cluster_->At(comes_back ? draw.Upto(seconds(2)) : microseconds(0), [attempt] {
        SimDaemon* const daemon = attempt->host->daemon.get();
        if (daemon != nullptr && daemon->life() == attempt->life) daemon->Cancel(attempt->id);
      });
    }
  }
  // Who has its program does not come back for the store's word.
  caller->left = !comes_back || caller->answers > 0 || cluster_->clock.now >= caller->question.deadline;
  if (caller->left) return;
  std::vector<Host*> others;
  for (const auto& host : cluster_->hosts) {
    if (host->forwards == caller->host->forwards) others.push_back(host.get());
  }
  caller->host = others[static_cast<size_t>(draw.Below(static_cast<int>(others.size())))];
  cluster_->At(milliseconds(100) + draw.Upto(milliseconds(900)), [this, caller] { Ask(caller); });
}

void SimCallers::Broken(const Host& host) {
  for (const auto& caller : callers_) {
    if (caller->attempt != nullptr && caller->attempt->host == &host) Leave(caller.get(), true);
  }
}

void SimCallers::CutOff() {
  for (const auto& caller : callers_) {
    if (caller->attempt != nullptr && cluster_->draw.Chance(20)) Leave(caller.get(), true);
  }
}

bool SimCallers::LeaveFlight(const Host& host, FlightId flight) {
  bool any = false;
  for (const auto& caller : callers_) {
    if (caller->attempt == nullptr || caller->attempt->host != &host || !Reaches(*caller->attempt)) continue;
    if (host.daemon->table().FlightOfCall(caller->attempt->id) != flight) continue;
    Leave(caller.get(), /*comes_back=*/false);
    any = true;
  }
  return any;
}

// ---- What they hear --------------------------------------------------------------------------

void SimCallers::Told(Attempt* attempt, const v1::CompileEvent& event) {
  ++cluster_->outcome.events;
  // Of a gang's member who has left a decision may be out.
  if (attempt->gone || attempt->caller->over) {
    if (attempt->caller->question.gang.empty() && attempt->caller->over && !attempt->gone)
      cluster_->Fail("a caller is told something after its end");
    return;
  }
  if (event.has_failed()) {
    Refuse(attempt,
           absl::Status(static_cast<absl::StatusCode>(event.failed().code()), event.failed().reason()),
           event.failed().no_verdict());
  }
  if (!event.has_done()) return;
  if (event.done().has_manifest()) {
    v1::Manifest manifest;
    manifest.ParseFromString(event.done().manifest().manifest());
    Answer(attempt, manifest, event.done().durable());
    if (cluster_->Plant(ClusterFault::kSecondAnswer, 5)) Told(attempt, event);
  } else if (event.done().durable() && !attempt->host->disk.ever_durable.contains(attempt->variant_id)) {
    cluster_->Fail("durable is said of what the store never took");
  }
}

void SimCallers::Answer(Attempt* attempt, const v1::Manifest& manifest, bool durable) {
  Caller& caller = *attempt->caller;
  ++caller.answers;
  attempt->variant_id = manifest.variant_id();
  if (manifest.request_key() != caller.question.key)
    cluster_->Fail("a caller gets the program of another key");
  if (!GuardsHold(manifest.guards(), HintsOfSize(caller.question.size)))
    cluster_->Fail("a caller gets a program that does not fit");
  if (durable && !attempt->host->disk.ever_durable.contains(manifest.variant_id()))
    cluster_->Fail("durable is said of what the store never took");
  cluster_->checks->ToldVariant(caller.question, manifest.variant_id());
}

void SimCallers::Refuse(Attempt* attempt, const absl::Status& refusal, bool no_verdict) {
  Caller& caller = *attempt->caller;
  ++caller.answers;
  if (no_verdict) {
    ++cluster_->outcome.no_verdicts;
    // Where some have a program, who can't have one is not told to fall back; whose time is over is told
    // that, or that the upstream's is.
    const bool late = cluster_->clock.now >= caller.question.deadline;
    if (cluster_->calm && !late && !absl::StrContains(refusal.message(), "others of the gang run"))
      cluster_->Fail(absl::StrCat("a gang's member is told nothing though all is well: ", refusal.message()));
    return;
  }
  cluster_->checks->ToldRefusal(caller.question, refusal);
}

void SimCallers::Ended(Attempt* attempt, const absl::Status& status) {
  ++cluster_->outcome.events;
  Caller& caller = *attempt->caller;
  if (attempt->gone) return;
  if (caller.over) cluster_->Fail(absl::StrCat("caller ", caller.number, " ends twice"));
  caller.over = true;
  caller.attempt = nullptr;
  if (status.ok() && caller.answers != 1)
    cluster_->Fail(absl::StrCat("caller ", caller.number, " got ", caller.answers, " answers"));
  if (absl::IsDeadlineExceeded(status) && cluster_->clock.now < caller.question.deadline)
    cluster_->Fail("a deadline before its time");
  if (absl::IsCancelled(status) || absl::IsUnavailable(status))
    cluster_->Fail(absl::StrCat("a caller is sent away for what another did: ", status.ToString()));
}

size_t SimCallers::active() const {
  return static_cast<size_t>(std::count_if(
      callers_.begin(), callers_.end(), [](const auto& caller) { return !caller->over && !caller->left; }));
}

void SimCallers::CheckAtRest() const {
  for (const auto& caller : callers_) {
    if (!caller->over && !caller->left)
      cluster_->Fail(absl::StrCat("caller ", caller->number, " was never answered"));
  }
}

}  // namespace kiln::sim
