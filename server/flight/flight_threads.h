// The threads of a coordinator. They are made and ended one by one, in an order that is its own
// (coordinator.cc): what is posted to one posts to those before it.
#pragma once

#include <memory>

#include "server/schedule/strand.h"
#include "server/schedule/thread_executor.h"

namespace kiln {

struct FlightThreads {
  std::unique_ptr<Strand> strand;             // the table's
  std::unique_ptr<ThreadExecutor> disk;       // for what takes in results, and reads and writes the store
  std::unique_ptr<ThreadExecutor> transfers;  // from the tier, which take as long as they are large
  std::unique_ptr<ThreadExecutor> looks;      // into the tier, which are short
  std::unique_ptr<ThreadExecutor> gpus;       // a thread a GPU
};

}  // namespace kiln
