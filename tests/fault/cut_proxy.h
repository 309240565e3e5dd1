// A TCP wire between a client and a kilnd that a test cuts: passes bytes on, counts connections, and ends
// them all, now or when the daemon has said so much.
//
// Threads: thread-safe; one that accepts, and one a connection.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace kiln {

class CutProxy {
 public:
  // `target`: "127.0.0.1:PORT".
  explicit CutProxy(const std::string& target);
  ~CutProxy();

  const std::string& address() const { return address_; }
  int accepted() const { return accepted_; }
  size_t open() const ABSL_LOCKS_EXCLUDED(mutex_);

  // All connections end, as when a router forgets them.
  void Cut() ABSL_LOCKS_EXCLUDED(mutex_);
  // Each ends when the daemon has sent so much by it, and the client has it; -1: not any more.
  void CutAfter(int64_t bytes) { cut_after_ = bytes; }
  // Whoever connects is turned away at once, until it is called with false.
  void Refuse(bool refuses) { refuses_ = refuses; }

 private:
  void Accept();
  void Serve(int client);

  const int target_port_;
  std::string address_;
  int listener_ = -1;
  std::atomic<int> accepted_{0};
  std::atomic<int64_t> cut_after_{-1};
  std::atomic<bool> refuses_{false};
  std::atomic<bool> closing_{false};
  mutable absl::Mutex mutex_;
  std::set<int> clients_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> connections_ ABSL_GUARDED_BY(mutex_);
  std::thread accepting_;  // last: it uses all of the above
};

}  // namespace kiln
