#include "server/rpc/reflection_answers.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.pb.h"
#include "grpcpp/grpcpp.h"

namespace kiln {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using grpc::reflection::v1::ServerReflectionRequest;
using grpc::reflection::v1::ServerReflectionResponse;

// In their order; the descriptors of gRPC's health service are in none of kilnd's files.
constexpr const char* kServices[] = {
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    "kiln.v1.Admin",
    "kiln.v1.Bundles",
    "kiln.v1.Compiler",
};

void SayUnknown(absl::string_view what, ServerReflectionResponse* response) {
  response->mutable_error_response()->set_error_code(grpc::StatusCode::NOT_FOUND);
  response->mutable_error_response()->set_error_message(absl::StrCat("nobody here knows ", what));
}

}  // namespace

ServerReflectionResponse ReflectionAnswers::Answer(const ServerReflectionRequest& question) {
  ServerReflectionResponse response;
  response.set_valid_host(question.host());
  *response.mutable_original_request() = question;
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  switch (question.message_request_case()) {
    case ServerReflectionRequest::kListServices:
      for (const char* service : kServices)
        response.mutable_list_services_response()->add_service()->set_name(service);
      break;
    case ServerReflectionRequest::kFileByFilename:
      AddFile(pool.FindFileByName(question.file_by_filename()), question.file_by_filename(), &response);
      break;
    case ServerReflectionRequest::kFileContainingSymbol:
      AddFile(pool.FindFileContainingSymbol(question.file_containing_symbol()),
              question.file_containing_symbol(), &response);
      break;
    case ServerReflectionRequest::kFileContainingExtension: {
      const auto& asked = question.file_containing_extension();
      const Descriptor* type = pool.FindMessageTypeByName(asked.containing_type());
      const FieldDescriptor* extension =
          type == nullptr ? nullptr : pool.FindExtensionByNumber(type, asked.extension_number());
      AddFile(extension == nullptr ? nullptr : extension->file(),
              absl::StrCat("extension ", asked.extension_number(), " of ", asked.containing_type()),
              &response);
      break;
    }
    case ServerReflectionRequest::kAllExtensionNumbersOfType: {
      const std::string& name = question.all_extension_numbers_of_type();
      const Descriptor* type = pool.FindMessageTypeByName(name);
      if (type == nullptr) {
        SayUnknown(name, &response);
        break;
      }
      std::vector<const FieldDescriptor*> extensions;
      pool.FindAllExtensions(type, &extensions);
      auto& numbers = *response.mutable_all_extension_numbers_response();
      numbers.set_base_type_name(name);
      for (const FieldDescriptor* extension : extensions) numbers.add_extension_number(extension->number());
      break;
    }
    case ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
      response.mutable_error_response()->set_error_code(grpc::StatusCode::INVALID_ARGUMENT);
      response.mutable_error_response()->set_error_message("message_request: is not set");
      break;
  }
  return response;
}

void ReflectionAnswers::AddFile(const FileDescriptor* file, absl::string_view what, Response* response) {
  if (file == nullptr) {
    SayUnknown(what, response);
    return;
  }
  response->mutable_file_descriptor_response();
  AddWithImports(*file, response);
}

void ReflectionAnswers::AddWithImports(const FileDescriptor& file, Response* response) {
  if (!sent_.insert(file.name()).second) return;
  google::protobuf::FileDescriptorProto proto;
  file.CopyTo(&proto);
  response->mutable_file_descriptor_response()->add_file_descriptor_proto(proto.SerializeAsString());
  for (int i = 0; i < file.dependency_count(); ++i) AddWithImports(*file.dependency(i), response);
}

}  // namespace kiln
