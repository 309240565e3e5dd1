// Of what holds gRPC's threads and locks in this process: running calls, and a connection that is kept. A
// child that is forked meanwhile has the locks and not the threads, and would wait for ever: to it all calls
// are refused.
//
// Threads: any.
#pragma once

#include <utility>

#include "absl/status/statusor.h"

namespace kiln {

class LiveCall {
 public:
  // UNAVAILABLE in a child that was forked while its parent had one.
  static absl::StatusOr<LiveCall> Enter();
  LiveCall(LiveCall&& other) noexcept : active_(std::exchange(other.active_, false)) {}
  LiveCall& operator=(LiveCall&&) = delete;
  ~LiveCall();
  // In a child, of one that is the parent's: it stays.
  void Abandon() { active_ = false; }

 private:
  LiveCall() = default;
  bool active_ = true;
};

}  // namespace kiln
