#include "server/pool/worker_shelf.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "server/server_limits.h"

namespace kiln {

void WorkerShelf::Put(std::string tenant, std::unique_ptr<WorkerProcess> process, MonotonicTime now) {
  std::unique_ptr<WorkerProcess> ended;  // without the lock
  absl::MutexLock lock(&mutex_);
  idle_.push_back({std::move(tenant), std::move(process), now});
  if (idle_.size() <= processes_max_) return;
  ended = std::move(idle_.front().process);
  idle_.erase(idle_.begin());
}

std::unique_ptr<WorkerProcess> WorkerShelf::Take(const std::string& tenant) {
  absl::MutexLock lock(&mutex_);
  const auto found = std::find_if(idle_.rbegin(), idle_.rend(),
                                  [&tenant](const Idle& idle) { return idle.tenant == tenant; });
  if (found == idle_.rend()) return nullptr;
  std::unique_ptr<WorkerProcess> process = std::move(found->process);
  idle_.erase(std::next(found).base());
  return process;
}

void WorkerShelf::EndIdle(MonotonicTime now) {
  std::vector<Idle> ended;  // without the lock
  absl::MutexLock lock(&mutex_);
  const auto first = std::find_if(idle_.begin(), idle_.end(), [now](const Idle& idle) {
    return now - idle.since < std::chrono::minutes(kShelvedMinutesMax);
  });
  std::move(idle_.begin(), first, std::back_inserter(ended));
  idle_.erase(idle_.begin(), first);
}

}  // namespace kiln
