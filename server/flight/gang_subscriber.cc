#include "server/flight/gang_subscriber.h"

#include <utility>

namespace kiln {
namespace {

bool IsVerdict(const v1::CompileEvent& event) { return event.has_failed() || event.has_done(); }

GangProposal ProposalIn(const FlightEvent& event) {
  GangProposal proposal;
  if (event.message().has_failed()) {
    proposal.refusal = absl::Status(static_cast<absl::StatusCode>(event.message().failed().code()),
                                    event.message().failed().reason());
  } else {
    proposal.variant_id = event.manifest().variant_id();
    proposal.guards = event.manifest().guards();
  }
  return proposal;
}

}  // namespace

void GangSubscriber::Event(const FlightEventPtr& event) {
  {
    absl::MutexLock lock(&mutex_);
    if (state_ == State::kDeciding) {
      waiting_.push_back(event);
      return;
    }
    if (state_ != State::kOpen || !IsVerdict(event->message())) {
      Pass(event);
      return;
    }
    state_ = State::kDeciding;
  }
  decider_->Decide(
      name_, hints_, ProposalIn(*event),
      [self = shared_from_this(), event](const GangAnswer& answer) { self->Decided(event, answer); });
}

void GangSubscriber::Decided(const FlightEventPtr& proposed, const GangAnswer& answer) {
  switch (answer.kind) {
    case GangAnswer::Kind::kOpen: TellUnknown(absl::InternalError("a proposal was not taken")); return;
    case GangAnswer::Kind::kUnknown:
      Tell(FailedEvent(answer.status, /*no_verdict=*/true), State::kToldAnother);
      return;
    case GangAnswer::Kind::kRefused: Tell(FailedEvent(answer.status), State::kToldAnother); return;
    case GangAnswer::Kind::kVariant: break;
  }
  if (proposed->message().has_done() && proposed->manifest().variant_id() == answer.variant_id) {
    Tell(proposed, State::kTold);
    return;
  }
  decider_->Variant(name_, answer.variant_id,
                    [self = shared_from_this()](absl::StatusOr<KnownVariant> variant) {
                      if (!variant.ok()) {
                        self->TellUnknown(variant.status());
                        return;
                      }
                      self->Tell(KnownEvent(*variant), State::kToldAnother);
                    });
}

void GangSubscriber::TellUnknown(const absl::Status& why) {
  Tell(FailedEvent(why, /*no_verdict=*/true), State::kToldAnother);
}

void GangSubscriber::Tell(const FlightEventPtr& event, State state) {
  absl::MutexLock lock(&mutex_);
  state_ = state;
  call_->Event(event);
  for (const FlightEventPtr& later : waiting_) Pass(later);
  waiting_.clear();
  if (end_.has_value()) call_->End(*end_);
}

void GangSubscriber::Pass(const FlightEventPtr& event) {
  if (state_ == State::kToldAnother && IsVerdict(event->message())) return;
  call_->Event(event);
}

void GangSubscriber::End(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (state_ == State::kDeciding) {
    end_ = status;
  } else {
    call_->End(status);
  }
}

}  // namespace kiln
