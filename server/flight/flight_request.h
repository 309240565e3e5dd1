// What a flight compiles, and for whom: all that its work may know of the calls.
//
// Ownership: shared by the table, the flights that start from the same upload, and who compiles. The table
// changes it until the flight is queued; then it is immutable. Threads: any number read it after that.
// Limits: the bytes are of who asks; FlightPlaces and CallerBytes bound them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "compiler/support/monotonic_time.h"
#include "kiln/v1/compile.pb.h"
#include "server/schedule/fair_queue.h"

namespace kiln {

using FlightId = uint64_t;  // chosen by the table, never twice
// Shared with the flights that start from the same upload, and with what compiles them.
using GraphPtr = std::shared_ptr<const std::string>;

struct FlightRequest {
  std::string ns;
  std::string compile_key;
  std::string request_key;
  Caller caller;       // the first one; its class is that of the flight when it is queued
  bool debug = false;  // stages as text, kernels emitted again with their listings
  v1::RequestSections sections;
  v1::GraphNotes notes;
  v1::Gang gang;  // of the callers, where another daemon has its verdict
  struct Bytes {
    uint64_t all = 0;     // of the graph, before it is here, and of the header
    uint64_t graph = 0;   // of those the graph's, as the caller says
    uint64_t header = 0;  // of those the header's, in memory
  };
  Bytes bytes;
  std::vector<std::string> hops;  // daemons that the request has passed

  // Set by the table.
  v1::Hints hints;                                // of the caller for whom it compiles
  GraphPtr graph;                                 // null until it is here
  MonotonicTime deadline = MonotonicTime::max();  // of who waits when it is queued
  struct Job {
    std::string id;        // 16 random bytes
    uint64_t program = 0;  // in the order of arrival
    MonotonicTime created;
    size_t variants_known = 0;  // stored ones of the key, none of which fits
  };
  Job job;
};
using FlightRequestPtr = std::shared_ptr<const FlightRequest>;  // shared by the table and who compiles

// Calls of one slot are answered together: those of a key. Where another daemon has the verdict of a gang,
// only it knows what other sizes are served: then they are of one gang and equal hints as well.
std::string FlightSlot(const std::string& compile_key, const v1::Gang& gang, const v1::Hints& hints);

}  // namespace kiln
