// A graph as a training process sends it, small: for real workers.
#pragma once

#include <stdlib.h>

#include <string>

#include "compiler/graph/canonical.h"
#include "compiler/graph/key.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "google/protobuf/text_format.h"
#include "kiln/client.h"

namespace kiln {

// relu(x) + x
inline constexpr char kGraph[] = R"(
  format_version: 1 kind: INFERENCE
  inputs { tensor { dtype: F32 device { type: CPU } sizes { value: 6 } strides { value: 1 } } }
  nodes { target: "aten.relu.default" args { name: "self" value { as_tensor: 0 } }
          results { dtype: F32 device { type: CPU } sizes { value: 6 } strides { value: 1 } } }
  nodes { target: "aten.add.Tensor" args { name: "self" value { as_tensor: 1 } }
          args { name: "other" value { as_tensor: 0 } }
          results { dtype: F32 device { type: CPU } sizes { value: 6 } strides { value: 1 } } }
  outputs { value: 2 })";

template <typename Message>
Message FromTextProto(const std::string& text) {
  Message message;
  if (!google::protobuf::TextFormat::ParseFromString(text, &message)) abort();
  return message;
}

inline CompileRequestInput InputOfGraph() {
  CompileRequestInput input;
  const auto canonical = Canonicalize(FromTextProto<v1::Graph>(kGraph));
  input.graph = canonical->bytes;
  v1::RequestSections& sections = input.sections;
  sections.set_options(SerializeDeterministic(v1::Options()));
  sections.set_target(SerializeDeterministic(FromTextProto<v1::Target>(
      R"(triple: "x86_64-linux-gnu" features: "avx2" features: "bmi2" features: "f16c" features: "fma")")));
  sections.set_numerics(
      SerializeDeterministic(FromTextProto<v1::Numerics>(R"(float32_matmul_precision: "highest")")));
  sections.set_facts(
      SerializeDeterministic(FromTextProto<v1::GraphFacts>("inputs {} outputs { user_visible: true }")));
  v1::Environment environment;
  environment.set_torch_version("2.13");
  environment.set_decomposition_digest(Sha256("decompositions"));
  sections.set_environment(SerializeDeterministic(environment));
  sections.set_graph_digest(Sha256(input.graph));
  input.request_key = RequestKey(sections);
  input.notes.set_title("Small forward");
  input.notes.add_node_names("relu");
  input.notes.add_guards("tensor 'x' size 6");
  return input;
}

}  // namespace kiln
