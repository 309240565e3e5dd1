// What gRPC's server reflection answers: the names of kilnd's services, and the descriptors of their
// messages.
//
// Threads: one at a time; each stream has its own, which remembers the files that the stream was sent.
#pragma once

#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "grpc/reflection/v1/reflection.pb.h"

namespace kiln {

class ReflectionAnswers {
 public:
  // Of what nobody knows, an answer that says NOT_FOUND; the stream goes on.
  grpc::reflection::v1::ServerReflectionResponse Answer(
      const grpc::reflection::v1::ServerReflectionRequest& question);

 private:
  using Response = grpc::reflection::v1::ServerReflectionResponse;

  // The file and then what it imports, but what the stream has been sent; null: NOT_FOUND of `what`.
  void AddFile(const google::protobuf::FileDescriptor* file, absl::string_view what, Response* response);
  void AddWithImports(const google::protobuf::FileDescriptor& file, Response* response);

  std::set<std::string> sent_;
};

}  // namespace kiln
