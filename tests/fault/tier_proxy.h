// Stands between daemons and the server of their tier, on a unix socket of its own: passes bytes on, late if
// it is told so, and does something at a command that a daemon sends.
//
// Threads: thread-safe; one a connection, and one that accepts. What Arm is given runs on one of them.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace kiln {

class TierProxy {
 public:
  // At the command that has `text`, for the `number`th time: before the server has it, or when the server
  // has done it and the daemon has no answer yet.
  struct Point {
    std::string text;
    int number = 1;
    bool done = false;
  };

  explicit TierProxy(std::string server_socket);
  ~TierProxy();

  std::string address() const { return "unix:" + socket_; }
  // Of what comes from now on; a question and its answer are late twice.
  void Delay(absl::Duration each_way) { delay_ns_ = absl::ToInt64Nanoseconds(each_way); }
  // Calls `act` once. What the daemon has said on that connection since is lost.
  void Arm(Point point, std::function<void()> act) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Accept();
  void Serve(int client);
  // Where in `bytes`, which a daemon sent, the armed point is: as many of them go on. npos: it is not there.
  size_t Find(absl::string_view bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void Act(int server) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string directory_;
  const std::string socket_;
  const std::string server_socket_;
  std::atomic<int64_t> delay_ns_{0};
  std::atomic<bool> closing_{false};
  int listener_ = -1;
  absl::Mutex mutex_;
  Point point_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> act_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> connections_ ABSL_GUARDED_BY(mutex_);
  std::thread accepting_;  // last: it uses all of the above
};

}  // namespace kiln
