#include "tests/sim/cluster_checks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "compiler/graph/guards.h"
#include "server/flight/gang_variants.h"
#include "server/flight/gangs.h"
#include "tests/sim/sim_gangs.h"

namespace kiln::sim {
namespace {

constexpr milliseconds kCommand(100);    // there and back, with the limit of a look-up
constexpr milliseconds kTakenOver(600);  // a pause of who waits, and commands
constexpr milliseconds kPutBack(400);    // beside kKeepEvery: three commands
constexpr seconds kForgotten(3600);

microseconds Micros(absl::Duration duration) { return absl::ToChronoMicroseconds(duration); }

}  // namespace

// ---- Claims ----------------------------------------------------------------------------------

// It expired, and nobody had released it.
void ClusterChecks::Lapse(const std::string& name) {
  const auto found = holders_.find(name);
  if (found == holders_.end() || found->second.until > cluster_->clock.now) return;
  const Holder holder = found->second;
  holders_.erase(found);
  const Host& host = *cluster_->hosts[holder.host];
  const FlightFacts* facts = FactsOf(host, holder.life, holder.flight);
  if (facts == nullptr) {
    ++cluster_->outcome.takeovers;
    return;
  }
  const MonotonicTime granted = holder.until - Micros(kClaimLife);
  if (host.daemon->HoldsClaim(holder.flight) && facts->token_over == MonotonicTime::max() &&
      host.trouble < granted && cluster_->tier_lost < granted)
    cluster_->Fail(absl::StrCat("a claim of ", name, " ends though its owner lives"));
}

void ClusterChecks::ClaimAsked(const Host& host, const ClaimTable::Question& question, bool yes) {
  Lapse(question.name);
  const auto found = holders_.find(question.name);
  const bool others = found != holders_.end() && found->second.token != question.token;
  if (question.kind == ClaimTable::Question::Kind::kRelease) {
    if (yes && others) cluster_->Fail(absl::StrCat("a claim of ", question.name, " is released by another"));
    if (found != holders_.end() && !others) holders_.erase(found);
    return;
  }
  if (!yes) return;
  if (others) {
    cluster_->Fail(absl::StrCat("two hold the claim of ", question.name, ": ", found->second.token, " and ",
                                question.token));
  }
  free_since_.erase(question.name);
  holders_[question.name] = {question.token, host.number, std::stoull(question.token.substr(2)), question.id,
                             cluster_->clock.now + Micros(kClaimLife)};
}

void ClusterChecks::Released(Host* host, FlightId flight) {
  const MonotonicTime now = cluster_->clock.now;
  const uint64_t life = host->daemon->life();
  cluster_->At(2 * kCommand, [this, host, flight, life, now] {
    if (host->trouble >= now) return;
    for (const auto& [name, holder] : holders_) {
      if (holder.host == host->number && holder.life == life && holder.flight == flight &&
          cluster_->tier.Owner(name) == holder.token)
        cluster_->Fail(absl::StrCat("a claim of ", name, " is kept that nobody needs"));
    }
  });
}

void ClusterChecks::GoesWithout(const Host& host, const FlightFacts& facts, bool patience_is_over) {
  if (!patience_is_over && host.trouble < facts.began)
    cluster_->Fail(absl::StrCat(facts.key, " is compiled without a claim though the tier answers"));
}

// ---- Compiles --------------------------------------------------------------------------------

// Null: that daemon is gone.
const FlightFacts* ClusterChecks::FactsOf(const Host& host, uint64_t life, FlightId flight) const {
  if (host.daemon == nullptr || host.daemon->dead() || host.daemon->life() != life) return nullptr;
  const auto found = host.daemon->facts().find(flight);
  return found == host.daemon->facts().end() ? nullptr : &found->second;
}

// Since when nothing has gone wrong between a daemon and the tier.
MonotonicTime ClusterChecks::Calm(const Host& host) const {
  return std::max({host.trouble, cluster_->tier_lost, MonotonicTime()});
}

// Whether nothing has come between it and its claim, since it was asked for.
bool ClusterChecks::IsSure(const Host& host, const FlightFacts& facts) const {
  return facts.ours_at > MonotonicTime::min() && !facts.without && !facts.in_part &&
         Calm(host) + kCommand < facts.ours_at;
}

void ClusterChecks::Begins(Host* host, FlightId flight, const FlightRequest& request) {
  ++cluster_->outcome.compiles;
  const std::string& key = request.compile_key;
  const uint64_t life = host->daemon->life();
  const FlightFacts* facts = FactsOf(*host, life, flight);
  const bool sure = facts != nullptr && IsSure(*host, *facts);
  for (const Compile& other : running_[key]) {
    if (other.host == host && other.life == life)
      cluster_->Fail(absl::StrCat("a second compile of ", key, " at one daemon: another runs"));
    const FlightFacts* others = FactsOf(*other.host, other.life, other.flight);
    if (sure && others != nullptr && IsSure(*other.host, *others))
      cluster_->Fail(absl::StrCat("a second compile of ", key, " in the cluster: another runs"));
  }
  for (const auto& [id, variant] : host->disk.variants[key]) {
    const bool seen = facts != nullptr && variant.since <= facts->known_at;
    if (seen && GuardsHold(variant.artifact->guards, request.hints))
      cluster_->Fail(absl::StrCat("a second compile of ", key, " at one daemon: its store had what fits"));
  }
  if (sure) {
    Lapse(key);
    const auto holder = holders_.find(key);
    if (holder == holders_.end() || holder->second.host != host->number || holder->second.life != life)
      cluster_->Fail(absl::StrCat("a compile of ", key, " begins beside another's claim"));
    for (const Made& made : made_[key]) {
      const Host& maker = *cluster_->hosts[made.host];
      if (made.sure && Calm(maker) + kCommand < made.ours_at &&
          GuardsHold(made.artifact->guards, request.hints))
        cluster_->Fail(absl::StrCat("a second compile of ", key,
                                    " in the cluster: ", made.artifact->variant_id, " had been made"));
    }
  }
  running_[key].push_back({host, life, flight, request.hints});
}

void ClusterChecks::Ends(Host* host, FlightId flight, const std::shared_ptr<const Artifact>& made) {
  const uint64_t life = host->daemon->life();
  for (auto& [key, compiles] : running_) {
    std::erase_if(compiles, [&](const Compile& compile) {
      return compile.host == host && compile.life == life && compile.flight == flight;
    });
  }
  const FlightFacts* facts = FactsOf(*host, life, flight);
  if (made == nullptr || facts == nullptr) return;
  made_[made->compile_key].push_back(
      {host->number, life, facts->ours_at, cluster_->clock.now, made, IsSure(*host, *facts)});
}

void ClusterChecks::Killed(const Host& host) {
  for (auto& [key, compiles] : running_)
    std::erase_if(compiles, [&](const Compile& compile) { return compile.host == &host; });
}

// ---- Gangs -----------------------------------------------------------------------------------

void ClusterChecks::Proposed(const GangName& name, const absl::Status& refusal) {
  proposed_[absl::StrCat(TierNameOf(name), " ", refusal.message())] = cluster_->clock.now;
}

ClusterChecks::Told& ClusterChecks::ToldOf(const SimQuestion& question) {
  Told& told = told_[absl::StrCat(question.key, " ", question.gang)];
  // Verdicts last for an hour.
  if (cluster_->clock.now - told.last > kForgotten - seconds(60)) told = Told();
  told.last = cluster_->clock.now;
  return told;
}

// Where the tier has lost a verdict there may be a second until they meet, and until what was decided before
// that has been told: a program may have to be brought first.
bool ClusterChecks::MayDiffer(const std::string& name, const Telling& before) const {
  const auto found = losses_.find(name);
  if (found == losses_.end()) return false;
  return std::any_of(found->second.begin(), found->second.end(), [&](const Loss& loss) {
    return loss.until == MonotonicTime::max() ||
           before.at <= loss.until + Micros(kVariantPatience) + kCommand;
  });
}

void ClusterChecks::ToldVariant(const SimQuestion& question, const std::string& variant_id) {
  if (question.gang.empty()) return;
  const std::string name = absl::StrCat(question.key, " ", question.gang);
  Told& told = ToldOf(question);
  for (const Telling& before : told.refusals) {
    if (!MayDiffer(name, before))
      cluster_->Fail(absl::StrCat("a gang's member hits where another falls back: ", name));
  }
  for (const Telling& before : told.by_size[question.size]) {
    if (before.what != variant_id && !MayDiffer(name, before))
      cluster_->Fail(absl::StrCat("equal hints of a gang get two variants: ", name, ", size ", question.size,
                                  ", ", before.what, " and ", variant_id));
  }
  const Telling telling{variant_id, cluster_->clock.now};
  told.by_size[question.size].push_back(telling);
  told.variants.push_back(telling);
}

void ClusterChecks::ToldRefusal(const SimQuestion& question, const absl::Status& refusal) {
  if (question.gang.empty()) return;
  const std::string name = absl::StrCat(question.key, " ", question.gang);
  Told& told = ToldOf(question);
  for (const Telling& before : told.variants) {
    if (!MayDiffer(name, before))
      cluster_->Fail(absl::StrCat("a gang's member falls back where another hits: ", name));
  }
  const auto proposed = proposed_.find(absl::StrCat(name, " ", refusal.message()));
  if (proposed == proposed_.end() || proposed->second < question.gang_began)
    cluster_->Fail(absl::StrCat("a gang is refused for what happened to another: ", refusal.message()));
  told.refusals.push_back({"", cluster_->clock.now});
}

// ---- Troubles --------------------------------------------------------------------------------

void ClusterChecks::TierLost() {
  const MonotonicTime now = cluster_->clock.now;
  cluster_->tier_lost = now;
  holders_.clear();
  for (const auto& [name, ending] : cluster_->tier.data().claims) {
    if (ending.until <= now) continue;
    // Who had it then.
    holders_[name] = {ending.value, static_cast<size_t>(std::stoull(ending.value)),
                      std::stoull(ending.value.substr(2)), 0, ending.until};
  }
  for (const auto& [name, gang] : names_) {
    Loss loss;
    loss.at = now;
    for (const auto& host : cluster_->hosts) {
      if (host->daemon != nullptr && host->daemon->gangs().Listed().contains(name))
        loss.to_see[{host->number, host->daemon->life()}] = now;
    }
    losses_[name].push_back(std::move(loss));
  }
}

void ClusterChecks::SweepLosses(const Listed& listed) {
  for (auto& [name, losses] : losses_) {
    for (Loss& loss : losses) {
      if (loss.until < MonotonicTime::max()) continue;
      for (auto& [daemon, since] : loss.to_see) {
        const Host& host = *cluster_->hosts[daemon.first];
        since = std::max({since, host.trouble, cluster_->tier_lost});
        if (host.cut) since = cluster_->clock.now;
      }
      std::erase_if(loss.to_see, [&](const auto& seen) {
        return HasSeen(name, seen.first.first, seen.first.second, seen.second, listed);
      });
      if (loss.to_see.empty()) loss.until = cluster_->clock.now;
    }
  }
}

// Whether a daemon has had the time to see what the tier lost; then it has put it back, or met another.
bool ClusterChecks::HasSeen(const std::string& name, size_t number, uint64_t life, MonotonicTime since,
                            const Listed& listed) {
  const Host& host = *cluster_->hosts[number];
  if (host.daemon == nullptr || host.daemon->life() != life) return true;
  if (cluster_->clock.now < since + Micros(kKeepEvery) + kPutBack) return false;
  const v1::GangVerdict there = VerdictIn(cluster_->tier.Verdict(name));
  if (listed[number].contains(name) && (IsEmpty(there) || Compare(host.daemon->gangs().Held(names_.at(name)),
                                                                  there) == GangAgreement::kSecondIsEarlier))
    cluster_->Fail(absl::StrCat("what the tier has lost is not put back: ", name));
  return true;
}

// Whose owner is gone, or has released it, somebody else has soon.
void ClusterChecks::SweepClaims() {
  const MonotonicTime now = cluster_->clock.now;
  std::map<std::string, MonotonicTime> free;
  for (const auto& host : cluster_->hosts) {
    if (host->daemon == nullptr || host->forwards || host->cut) continue;
    for (const std::string& key : host->daemon->ClaimsAwaited()) {
      Lapse(key);
      if (!cluster_->tier.Owner(key).empty()) continue;
      const auto before = free_since_.find(key);
      const MonotonicTime since = before == free_since_.end() ? now : before->second;
      free[key] = since;
      if (now - std::max(since, host->trouble) > kTakenOver)
        cluster_->Fail(absl::StrCat("a caller waits for the dead: nobody has the claim of ", key));
    }
  }
  free_since_ = std::move(free);
}

// Whose owner needs it no more is released, again where that was lost.
void ClusterChecks::SweepKept() {
  const MonotonicTime now = cluster_->clock.now;
  for (const auto& [name, holder] : holders_) {
    const Host& host = *cluster_->hosts[holder.host];
    const FlightFacts* facts = FactsOf(host, holder.life, holder.flight);
    if (facts == nullptr || host.cut || facts->token_over == MonotonicTime::max()) continue;
    if (now - std::max({facts->token_over, host.trouble, cluster_->tier_lost}) <= kTakenOver) continue;
    if (cluster_->tier.Owner(name) == holder.token)
      cluster_->Fail(absl::StrCat("a claim of ", name, " is still kept that nobody needs"));
  }
}

// What a daemon holds the tier holds as long.
void ClusterChecks::SweepLives(const Listed& listed) {
  const MonotonicTime now = cluster_->clock.now;
  for (const auto& host : cluster_->hosts) {
    if (host->daemon == nullptr || host->cut) continue;
    // What is put back, as soon as it can be, ends with who was first, until the others have kept it too.
    const microseconds back = cluster_->outcome.losses > 0 ? Micros(kKeepEvery) + kPutBack : microseconds(0);
    const MonotonicTime calm =
        std::max(std::max(host->trouble, cluster_->tier_lost) + back, host->daemon->born());
    if (now < calm + Micros(kKeepEvery) + kPutBack) continue;
    for (const auto& [name, until] : listed[host->number]) {
      const MonotonicTime used = until - Micros(kGangVerdictLife);
      if (now < used + Micros(kKeepEvery) + kPutBack) continue;
      if (cluster_->tier.EndOfVerdict(name) + kCommand < until)
        cluster_->Fail(absl::StrCat("a verdict ends in the tier before its time: ", name));
    }
  }
}

void ClusterChecks::Sweep() {
  Listed listed(cluster_->hosts.size());
  for (const auto& host : cluster_->hosts) {
    if (host->daemon != nullptr) listed[host->number] = host->daemon->gangs().Listed();
  }
  SweepLosses(listed);
  SweepClaims();
  SweepKept();
  SweepLives(listed);
}

}  // namespace kiln::sim
