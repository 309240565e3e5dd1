// A master, its replica, and three sentinels that know both: for fail-overs. It ends with the object.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cache/shared/redis_address.h"
#include "tests/fault/redis_server.h"

namespace kiln {

class RedisSentinels {
 public:
  static constexpr char kMaster[] = "main";  // by which they know it

  RedisSentinels();  // waits until each of them knows all

  RedisServer& server(int number) { return *servers_[static_cast<size_t>(number)]; }  // 0: the first master
  RedisServer& sentinel(int number) { return *sentinels_[static_cast<size_t>(number)]; }
  int port(int server) const { return ports_[static_cast<size_t>(server)]; }
  const std::vector<RedisAddress>& sentinels() const { return parsed_; }
  const std::vector<std::string>& addresses() const { return addresses_; }
  // A daemon's `tier`, its limit being `lookup_ms_max`.
  std::string TierConfig(int lookup_ms_max) const;

  // What the server says of it.
  std::string Replication(int server);
  // The port of the master that the sentinels name; 0: of none.
  int MasterPort() const;

 private:
  std::vector<int> ports_;
  std::vector<std::unique_ptr<RedisServer>> servers_, sentinels_;
  std::vector<std::string> addresses_;
  std::vector<RedisAddress> parsed_;
};

}  // namespace kiln
