// A Redis cluster of six: three masters, each with a third of the slots, and a replica of each. It ends with
// the object.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cache/shared/redis_cluster.h"
#include "tests/fault/redis_server.h"

namespace kiln {

class RedisNodes {
 public:
  static constexpr int kMasters = 3;

  RedisNodes();  // waits until everybody knows all

  // The masters, then their replicas, then those started later, which have no slots.
  RedisServer& server(int number) { return *servers_[static_cast<size_t>(number)]; }
  int port(int number) const { return ports_[static_cast<size_t>(number)]; }
  std::string address(int number) const;
  void StartNode();
  std::string Ask(int number, const std::vector<std::string>& command) { return server(number).Ask(command); }
  const std::string& IdOf(int number) const { return ids_[static_cast<size_t>(number)]; }

  // The master that has the slot at first.
  static int OwnerOf(int slot) { return slot * kMasters / static_cast<int>(kRedisSlots); }
  void BeginMove(int slot, int from, int to);
  void MoveKeys(const std::vector<std::string>& names, int from, int to);
  void EndMove(int slot, int to);

 private:
  bool IsWhole();

  std::vector<int> ports_;
  std::vector<std::unique_ptr<RedisServer>> servers_;
  std::vector<std::string> ids_;
};

}  // namespace kiln
