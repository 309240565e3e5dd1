#include "tests/fuzz/graph_mutator.h"

#include <vector>

#include "google/protobuf/descriptor.h"

namespace kiln::testing {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr const char* kTargets[] = {"aten.add.Tensor",
                                    "aten.mul.Tensor",
                                    "aten.relu.default",
                                    "aten.view.default",
                                    "aten.permute.default",
                                    "aten.expand.default",
                                    "aten.cat.default",
                                    "aten.sum.dim_IntList",
                                    "aten.mm.default",
                                    "aten.bmm.default",
                                    "aten._softmax.default",
                                    "aten.embedding.default",
                                    "aten.slice.Tensor",
                                    "aten.select.int",
                                    "aten.where.self",
                                    "aten.copy_.default",
                                    "aten.convolution.default",
                                    "aten.native_layer_norm.default",
                                    "aten.sort.default",
                                    "aten.no_such_thing.default",
                                    "aten.add.Nonsense",
                                    "aten.add_.Tensor",
                                    "prims.convert_element_type.default",
                                    "kiln.secret.default",
                                    "aten.index_put.default",
                                    "aten.scatter_add.default",
                                    "aten.gather.default",
                                    "aten.arange.start_step",
                                    "aten.full.default",
                                    "aten.native_dropout.default",
                                    "aten.max_pool2d_with_indices.default",
                                    "aten.topk.default",
                                    "",
                                    "..",
                                    "aten.\xff.x",
                                    "aten.squeeze.dims"};

constexpr const char* kNames[] = {"self",    "other",   "dim",   "size", "input", "index",
                                  "indices", "tensors", "alpha", "x",    ""};

template <typename T, size_t n>
size_t Size(const T (&)[n]) {
  return n;
}

}  // namespace

int64_t GraphMutator::Number(int64_t near) {
  constexpr int64_t kOdd[] = {0,
                              1,
                              -1,
                              2,
                              3,
                              7,
                              8,
                              16,
                              63,
                              64,
                              -2,
                              99,
                              1 << 16,
                              INT32_MAX,
                              INT32_MIN,
                              INT64_MAX,
                              INT64_MIN,
                              int64_t{1} << 40,
                              int64_t{1} << 62};
  switch (Pick(4)) {
    case 0: return kOdd[Pick(Size(kOdd))];
    case 1: return static_cast<int64_t>(static_cast<uint64_t>(near) + 1);
    case 2: return static_cast<int64_t>(static_cast<uint64_t>(near) - 1);
    default: return static_cast<int64_t>(Pick(8));
  }
}

Message* GraphMutator::PickPart(v1::Graph* graph) {
  Message* part = graph;
  if (graph->nodes_size() > 0 && Pick(3) != 0) part = graph->mutable_nodes(Pick(graph->nodes_size()));
  while (true) {
    const Reflection* reflection = part->GetReflection();
    std::vector<Message*> inside;
    for (int i = 0; i < part->GetDescriptor()->field_count(); ++i) {
      const FieldDescriptor* field = part->GetDescriptor()->field(i);
      if (field->message_type() == nullptr) continue;
      if (field->is_repeated()) {
        for (int j = 0; j < reflection->FieldSize(*part, field); ++j) {
          inside.push_back(reflection->MutableRepeatedMessage(part, field, j));
        }
      } else if (reflection->HasField(*part, field)) {
        inside.push_back(reflection->MutableMessage(part, field));
      }
    }
    if (inside.empty() || (part != graph && Pick(4) == 0)) return part;
    part = inside[Pick(inside.size())];
  }
}

void GraphMutator::Mutate(v1::Graph* graph) {
  // Three changes that random fields would seldom hit on.
  if (graph->nodes_size() > 0) {
    v1::Node* node = graph->mutable_nodes(Pick(graph->nodes_size()));
    switch (Pick(10)) {
      case 0: node->set_target(kTargets[Pick(Size(kTargets))]); return;
      case 1: node->Swap(graph->mutable_nodes(Pick(graph->nodes_size()))); return;
      case 2: {  // an argument of another node
        const v1::Node& other = graph->nodes(Pick(graph->nodes_size()));
        if (other.args_size() == 0 || node->args_size() == 0) break;
        *node->mutable_args(Pick(node->args_size()))->mutable_value() =
            other.args(Pick(other.args_size())).value();
        return;
      }
      default: break;
    }
  }
  Message* part = PickPart(graph);
  if (part->GetDescriptor()->field_count() == 0) return;
  const FieldDescriptor* field = part->GetDescriptor()->field(Pick(part->GetDescriptor()->field_count()));
  if (field->is_repeated()) {
    ChangeRepeated(part, field);
  } else {
    ChangeField(part, field);
  }
}

void GraphMutator::ChangeField(Message* part, const FieldDescriptor* field) {
  const Reflection* reflection = part->GetReflection();
  bool set = reflection->HasField(*part, field);
  if (set && Pick(10) == 0) return reflection->ClearField(part, field);
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection->SetInt64(part, field, Number(reflection->GetInt64(*part, field)));
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection->SetUInt32(part, field,
                                   static_cast<uint32_t>(Number(reflection->GetUInt32(*part, field))));
    case FieldDescriptor::CPPTYPE_UINT64: return reflection->SetUInt64(part, field, random_());
    case FieldDescriptor::CPPTYPE_BOOL: return reflection->SetBool(part, field, Pick(2) == 0);
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection->SetEnumValue(part, field, static_cast<int>(Pick(24)) - 1);
    case FieldDescriptor::CPPTYPE_STRING: {
      bool target = field->name() == "target";
      return reflection->SetString(part, field,
                                   target ? kTargets[Pick(Size(kTargets))] : kNames[Pick(Size(kNames))]);
    }
    case FieldDescriptor::CPPTYPE_MESSAGE: reflection->MutableMessage(part, field); return;
    default: return;
  }
}

void GraphMutator::ChangeRepeated(Message* part, const FieldDescriptor* field) {
  const Reflection* reflection = part->GetReflection();
  int size = reflection->FieldSize(*part, field);
  uint64_t way = Pick(size == 0 ? 1 : 4);
  if (way == 1) return reflection->RemoveLast(part, field);
  if (way == 2) return reflection->SwapElements(part, field, Pick(size), Pick(size));
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE: {
      Message* added = reflection->AddMessage(part, field);
      if (size > 0) added->CopyFrom(reflection->GetRepeatedMessage(*part, field, Pick(size)));
      return;
    }
    case FieldDescriptor::CPPTYPE_INT64:
      if (way == 3) return reflection->SetRepeatedInt64(part, field, Pick(size), Number(0));
      return reflection->AddInt64(part, field, Number(0));
    case FieldDescriptor::CPPTYPE_UINT32:
      if (way == 3)
        return reflection->SetRepeatedUInt32(part, field, Pick(size), static_cast<uint32_t>(Number(2)));
      return reflection->AddUInt32(part, field, static_cast<uint32_t>(Number(2)));
    case FieldDescriptor::CPPTYPE_BOOL: return reflection->AddBool(part, field, true);
    case FieldDescriptor::CPPTYPE_UINT64: return reflection->AddUInt64(part, field, random_());
    case FieldDescriptor::CPPTYPE_STRING: return reflection->AddString(part, field, "x");
    default: return;
  }
}

std::string GraphMutator::MutateBytes(std::string bytes) {
  for (uint64_t i = 0, n = 1 + Pick(4); i < n && !bytes.empty(); ++i) {
    size_t at = Pick(bytes.size());
    switch (Pick(5)) {
      case 0: bytes[at] = static_cast<char>(bytes[at] ^ (1 << Pick(8))); break;
      case 1: bytes[at] = static_cast<char>(Pick(256)); break;
      case 2: bytes.erase(at, 1 + Pick(8)); break;
      case 3: bytes.insert(at, bytes.substr(Pick(bytes.size()), 1 + Pick(32))); break;
      default: bytes.resize(at); break;
    }
  }
  return bytes;
}

}  // namespace kiln::testing
