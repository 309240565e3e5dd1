// One call that requests a key, as its transport passes it to the table.
//
// Ownership: the subscriber is shared with the transport, and dropped after its End. Threads: it is called on
// the table's strand, returns at once and never calls back in. Limits: `bytes` count in CallerBytes,
// `upload_bytes` in FlightPlaces.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "compiler/support/monotonic_time.h"
#include "kiln/v1/compile.pb.h"
#include "server/flight/flight_event.h"
#include "server/schedule/fair_queue.h"

namespace kiln {

using CallId = uint64_t;  // chosen by who calls, never twice

// One call that waits.
class Subscriber {
 public:
  virtual ~Subscriber() = default;
  virtual void Event(const FlightEventPtr& event) = 0;
  // kNow: upload, and hand the graph to `Uploaded`. kNever: a graph is here; yours is not needed any more.
  enum class Upload { kNow, kNever };
  virtual void Graph(Upload wanted) = 0;
  virtual void End(const absl::Status& status) = 0;
};

struct FlightCall {
  v1::Hints hints;
  v1::Gang gang;  // the caller's, where another daemon has its verdict
  Caller::Class work_class = Caller::Class::kInteractive;
  MonotonicTime deadline = MonotonicTime::max();
  uint64_t bytes = 0;                      // in memory, of this
  uint64_t upload_bytes = 0;               // the most that its upload takes on its way, packed and as it is
  std::shared_ptr<Subscriber> subscriber;  // shared with the transport
};

}  // namespace kiln
