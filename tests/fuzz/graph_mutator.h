// Changes a graph at random: any field of any part, by reflection. The result is always a message;
// whether it is a graph is for import to say. Deterministic by seed. Threads: one an object.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "google/protobuf/message.h"
#include "kiln/v1/graph.pb.h"

namespace kiln::testing {

class GraphMutator {
 public:
  explicit GraphMutator(uint64_t seed) : random_(seed) {}

  void Mutate(v1::Graph* graph);               // one change
  std::string MutateBytes(std::string bytes);  // flips, cuts, repeats, splices

  uint64_t Pick(uint64_t n) { return std::uniform_int_distribution<uint64_t>(0, n - 1)(random_); }

 private:
  // A part of the graph, chosen with some preference for nodes.
  google::protobuf::Message* PickPart(v1::Graph* graph);
  void ChangeField(google::protobuf::Message* part, const google::protobuf::FieldDescriptor* field);
  void ChangeRepeated(google::protobuf::Message* part, const google::protobuf::FieldDescriptor* field);
  int64_t Number(int64_t near);

  std::mt19937_64 random_;
};

}  // namespace kiln::testing
