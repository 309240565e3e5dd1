#include "server/flight/in_flight.h"

namespace kiln {

InFlight::InFlight(const FlightOptions& options, const Clock* clock, Workers* workers, FlightStore* store,
                   FlightClaims* claims)
    : options(options),
      clock(clock),
      workers(workers),
      store(store),
      claims(claims),
      flights(options.joinable),
      tasks(options.tasks),
      places(options.tasks.workers + options.queue_max, options.graphs_bytes_max),
      admission(options.quotas, options.tasks.workers, clock, &tasks),
      callers(options.callers_bytes_max) {}

void InFlight::SetDue(Flight& flight, std::optional<MonotonicTime> due) {
  if (flight.due.has_value()) timers.Clear(*flight.due, FlightTimers::Of::kFlight, flight.id);
  flight.due = due;
  if (due.has_value()) timers.Set(*due, FlightTimers::Of::kFlight, flight.id);
}

}  // namespace kiln
