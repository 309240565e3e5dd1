// One running compile and those who wait for it. Data only; all mutable fields are guarded by the
// coordinator's mutex, which is why they are here without locks of their own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kiln/v1/compile.pb.h"
#include "server/build/artifact.h"

namespace kiln {

struct Flight {
  // Const after construction.
  std::string
      slot;  // in the coordinator's map: the CompileKey; of a debug flight, which nobody joins, longer
  bool debug = false;  // stages as text, kernels emitted anew with their listings
  std::string ns;
  std::string compile_key;
  std::string request_key;
  std::string job_id;  // 16 random bytes
  v1::RequestSections sections;
  v1::GraphNotes notes;
  v1::Hints hints;  // of the caller who started it
  // Shared with every waiter that may have to start the next flight from the same upload.
  std::shared_ptr<const std::string> graph;
  absl::Time created;
  uint32_t position = 0;  // in the queue
  uint64_t ticket = 0;    // likewise

  // The runner's own.
  uint32_t workers_killed = 0;  // from outside, while they worked for this flight
  uint32_t workers_lost = 0;    // those, and others that crashed; not changed once there is an artifact

  // Guarded by the coordinator's mutex.
  absl::CondVar changed;
  std::string phase = "queued";
  std::vector<v1::CompileEvent> events;  // progress; every waiter reads from its own place
  uint32_t kernels_done = 0;
  uint32_t kernels_total = 0;
  uint32_t waiters = 0;
  absl::Time deadline = absl::InfinitePast();  // the latest waiter's
  bool abandoned = false;                      // the last waiter left before there was an artifact
  std::shared_ptr<const Artifact> artifact;    // shared: see Artifact
  absl::Status stored;                         // set before `finished` where there is an artifact
  bool finished = false;
  absl::Status status;
};

}  // namespace kiln
