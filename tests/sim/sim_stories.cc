#include "tests/sim/sim_stories.h"

#include <algorithm>

#include "server/flight/gangs.h"
#include "tests/sim/sim_daemon.h"
#include "tests/sim/sim_gangs.h"

namespace kiln::sim {
namespace {

constexpr milliseconds kForwardedBefore(40);  // so that the upstream has it
constexpr int kSizes = 60;                    // of a caller's, which may be none's so far
constexpr milliseconds kPutsBackLate(40);     // while another asks the tier

}  // namespace

bool SimStories::Play(Kind kind, const std::function<bool()>& story) {
  return planned_.contains(kind) && story() && planned_.erase(kind) > 0;
}

bool SimStories::AnswerComes(Kind as, const Host& host, FlightId flight) {
  return Play(as, [&] { return outside_.leave(host, flight); });
}

void SimStories::Forwards(Host* host, FlightId flight) {
  Play(Kind::kCutAsForwarded, [&] {
    if (!outside_.stalls(*host, flight)) return false;
    cluster_->At(kForwardedBefore, [this, host] {
      outside_.cut(host);
      outside_.crowd(host);
    });
    return true;
  });
}

void SimStories::DecisionComes(Host* host) {
  if (Happens(Kind::kCutAsDecided)) outside_.cut(host);
}

microseconds SimStories::PutsBack(Host* host, const GangName& name, const GangDecision::Question& question) {
  if (!question.wanted.has_value()) return microseconds(0);
  const bool less = !question.seen.empty();  // is there
  if (less && Happens(Kind::kCutAsPutBack)) {
    outside_.cut(host);
    return microseconds(0);
  }
  if (less && Happens(Kind::kLostAgain)) {
    outside_.lose();
    return microseconds(0);
  }
  for (const auto& [kind, with] : {std::pair(Kind::kOvertaken, GangAgreement::kFirstIsEarlier),
                                   std::pair(Kind::kRepeated, GangAgreement::kSame),
                                   std::pair(Kind::kForestalled, GangAgreement::kContradict)}) {
    const v1::GangVerdict& wanted = *question.wanted;
    if (!Play(kind, [&, with = with] { return Forestall(*host, name, wanted, with); })) continue;
    cluster_->At(kPutsBackLate / 2, [this, host, name, wanted] {
      if (host->daemon == nullptr) return;
      Adds(host, name, wanted, GangAgreement::kFirstIsEarlier);
      outside_.ask(host, name, cluster_->draw.Below(kSizes));
    });
    return kPutsBackLate;
  }
  return microseconds(0);
}

bool SimStories::Reaches(const Host& host, const Host& other) const {
  return &other != &host && !other.forwards && !other.cut && other.daemon != nullptr;
}

bool SimStories::Forestall(const Host& host, const GangName& name, const v1::GangVerdict& wanted,
                           GangAgreement with) {
  return std::any_of(cluster_->hosts.begin(), cluster_->hosts.end(), [&](const auto& other) {
    return Reaches(host, *other) && Adds(other.get(), name, wanted, with);
  });
}

// A member whose daemon has a variant that fits it, of which nothing is said yet.
bool SimStories::Adds(Host* host, const GangName& name, const v1::GangVerdict& to, GangAgreement with) {
  const v1::GangVerdict held = host->daemon->gangs().Held(name);
  const KnownKeyPtr known = host->disk.Known(name.compile_key);
  for (const KnownVariant& variant : known->variants) {
    const int size = static_cast<int>(variant.guards.symbols(0).max());
    const v1::Hints hints = HintsOfSize(size);
    if (AnswerOf(held, hints).kind != GangAnswer::Kind::kOpen) continue;
    const auto extended = Extended(held, ProposalOf(*known, hints, host->clock.WallNow()));
    if (extended.ok() && Compare(to, *extended) == with && outside_.ask(host, name, size)) return true;
  }
  return false;
}

}  // namespace kiln::sim
