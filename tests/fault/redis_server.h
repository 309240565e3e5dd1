// A redis-server of a test's own, on a unix socket in a temporary directory; flags may give it a port as
// well. It ends with the object.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

struct redisContext;

namespace kiln {

class RedisServer {
 public:
  // Whether this host has one; without it tests skip themselves.
  static bool IsThere();

  // By flags, and by lines of a file that the server may write anew (a sentinel's).
  explicit RedisServer(std::vector<std::string> flags = {}, const std::string& file = "");
  ~RedisServer();

  void Start();  // waits until it answers; what it held is gone
  void Kill();
  void Pause();  // SIGSTOP: it takes connections, and says nothing
  void Continue();

  std::string socket() const { return directory_ + "/redis.sock"; }
  std::string address() const { return "unix:" + socket(); }
  // One that nobody listens at, nor at 10,000 beyond it (a cluster's bus).
  static int FreePort();

  // What it answers, printed in one line; "(nil)", "(error) …".
  std::string Ask(const std::vector<std::string>& command);
  size_t Clients();  // connections, this one's own among them
  std::vector<std::string> Keys(const std::string& pattern = "*");

 private:
  std::string directory_;
  const std::vector<std::string> flags_;
  std::string file_;  // its path; empty: none
  pid_t pid_ = -1;
  redisContext* context_ = nullptr;
};

}  // namespace kiln
