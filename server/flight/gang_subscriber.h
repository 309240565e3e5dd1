// Stands between a flight and one member of a gang: what the flight has for the call is what is proposed, and
// the call is told what the gang is served, which may be another variant, or another failure.
//
// While that is being found out, what the flight tells waits. What becomes of the store's write is told of
// the flight's own variant alone.
//
// Shared by the flight table and by the decision that is out. Thread-safe; the flight's events come one at a
// time.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/flight/flight_call.h"
#include "server/flight/gang_decider.h"

namespace kiln {

class GangSubscriber final : public Subscriber, public std::enable_shared_from_this<GangSubscriber> {
 public:
  // `decider` outlives it; `call` is whom it stands before, shared with the transport.
  GangSubscriber(GangDecider* decider, GangName name, v1::Hints hints, std::shared_ptr<Subscriber> call)
      : decider_(decider), name_(std::move(name)), hints_(std::move(hints)), call_(std::move(call)) {}

  void Event(const FlightEventPtr& event) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Graph(Upload wanted) override { call_->Graph(wanted); }
  void End(const absl::Status& status) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  enum class State { kOpen, kDeciding, kTold, kToldAnother };
  void Decided(const FlightEventPtr& proposed, const GangAnswer& answer) ABSL_LOCKS_EXCLUDED(mutex_);
  void Tell(const FlightEventPtr& event, State state) ABSL_LOCKS_EXCLUDED(mutex_);
  void TellUnknown(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  void Pass(const FlightEventPtr& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  GangDecider* const decider_;
  const GangName name_;
  const v1::Hints hints_;
  const std::shared_ptr<Subscriber> call_;

  absl::Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kOpen;
  std::deque<FlightEventPtr> waiting_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kiln
