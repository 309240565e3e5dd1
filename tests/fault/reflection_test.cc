// gRPC's server reflection of a running kilnd, asked as grpcurl asks: what is needed to make a call without a
// .proto file is there, and no more is told than asked for.
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "google/protobuf/dynamic_message.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "kiln/v1/admin.pb.h"
#include "kiln/v1/compile.pb.h"
#include "tests/fault/test_daemon.h"
#include "tests/fault/wire_call.h"

namespace kiln {
namespace {

namespace v1alpha = grpc::reflection::v1alpha;
using grpc::reflection::v1::ServerReflection;
using grpc::reflection::v1::ServerReflectionRequest;
using grpc::reflection::v1::ServerReflectionResponse;

// One stream of questions.
class Stream {
 public:
  explicit Stream(const std::shared_ptr<grpc::Channel>& channel) : stub_(ServerReflection::NewStub(channel)) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    stream_ = stub_->ServerReflectionInfo(&context_);
  }
  ServerReflectionResponse Ask(const ServerReflectionRequest& question) {
    ServerReflectionResponse answer;
    EXPECT_TRUE(stream_->Write(question) && stream_->Read(&answer));
    return answer;
  }
  ServerReflectionResponse AskForSymbol(const std::string& symbol) {
    ServerReflectionRequest question;
    question.set_file_containing_symbol(symbol);
    return Ask(question);
  }
  // Until the daemon ends the stream.
  grpc::Status End() {
    ServerReflectionResponse answer;
    while (stream_->Read(&answer)) {
    }
    return stream_->Finish();
  }
  void Write(const ServerReflectionRequest& question) { stream_->Write(question); }
  grpc::Status Done() {
    stream_->WritesDone();
    return End();
  }

 private:
  std::unique_ptr<ServerReflection::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<ServerReflectionRequest, ServerReflectionResponse>> stream_;
};

class Reflection : public testing::Test {
 protected:
  explicit Reflection(const std::string& config = "") : daemon_(config) {}

  TestDaemon daemon_;
  std::shared_ptr<grpc::Channel> channel_ =
      grpc::CreateChannel(absl::StrCat("unix:", daemon_.socket()), grpc::InsecureChannelCredentials());
};

class HastyReflection : public Reflection {
 protected:
  HastyReflection() : Reflection("admission { silent_seconds_max: 1 }") {}
};

std::set<std::string> NamesIn(const ServerReflectionResponse& answer) {
  std::set<std::string> names;
  for (const auto& service : answer.list_services_response().service()) names.insert(service.name());
  return names;
}

std::map<std::string, google::protobuf::FileDescriptorProto> FilesIn(const ServerReflectionResponse& answer) {
  std::map<std::string, google::protobuf::FileDescriptorProto> files;
  for (const std::string& bytes : answer.file_descriptor_response().file_descriptor_proto()) {
    google::protobuf::FileDescriptorProto file;
    EXPECT_TRUE(file.ParseFromString(bytes));
    EXPECT_TRUE(files.emplace(file.name(), file).second) << file.name() << " twice";
  }
  return files;
}

TEST_F(Reflection, NamesEveryServiceInBothVersions) {
  std::set<std::string> expected = {"grpc.reflection.v1.ServerReflection",
                                    "grpc.reflection.v1alpha.ServerReflection"};
  for (const auto* file :
       {v1::CompileRequest::descriptor()->file(), v1::StatusRequest::descriptor()->file()}) {
    for (int i = 0; i < file->service_count(); ++i) expected.insert(file->service(i)->full_name());
  }
  ServerReflectionRequest question;
  question.set_list_services("*");
  Stream stream(channel_);
  EXPECT_EQ(NamesIn(stream.Ask(question)), expected);
  EXPECT_TRUE(stream.Done().ok());

  const auto stub = v1alpha::ServerReflection::NewStub(channel_);
  grpc::ClientContext context;
  const auto old = stub->ServerReflectionInfo(&context);
  v1alpha::ServerReflectionRequest old_question;
  old_question.set_list_services("");
  v1alpha::ServerReflectionResponse old_answer;
  ASSERT_TRUE(old->Write(old_question) && old->Read(&old_answer));
  ServerReflectionResponse alike;
  ASSERT_TRUE(alike.ParseFromString(old_answer.SerializeAsString()));
  EXPECT_EQ(NamesIn(alike), expected);
  old->WritesDone();
  EXPECT_TRUE(old->Finish().ok());
}

// As a tool does that has no file of kiln's: from the service's name to an answer of it.
TEST_F(Reflection, IsEnoughToMakeACall) {
  Stream stream(channel_);
  google::protobuf::SimpleDescriptorDatabase database;
  for (const auto& [name, file] : FilesIn(stream.AskForSymbol("kiln.v1.Compiler"))) database.Add(file);
  google::protobuf::DescriptorPool pool(&database);
  const auto* hello = pool.FindMethodByName("kiln.v1.Compiler.Hello");
  ASSERT_NE(hello, nullptr);
  google::protobuf::DynamicMessageFactory factory(&pool);
  const std::unique_ptr<google::protobuf::Message> request(factory.GetPrototype(hello->input_type())->New());
  for (const char* field : {"protocol_min", "protocol_max"}) {
    ASSERT_NE(hello->input_type()->FindFieldByName(field), nullptr);
    request->GetReflection()->SetUInt32(request.get(), hello->input_type()->FindFieldByName(field), 1);
  }
  WireCall call;
  call.method = "/kiln.v1.Compiler/Hello";
  call.messages = {request->SerializeAsString()};
  const WireReply reply = Say(channel_, call);
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  ASSERT_EQ(reply.messages.size(), 1);
  const std::unique_ptr<google::protobuf::Message> answer(factory.GetPrototype(hello->output_type())->New());
  ASSERT_TRUE(answer->ParseFromString(reply.messages[0]));
  v1::HelloReply known;
  ASSERT_TRUE(known.ParseFromString(reply.messages[0]));
  EXPECT_EQ(answer->ShortDebugString(), known.ShortDebugString());
}

TEST_F(Reflection, SendsAFileOnceAStream) {
  Stream stream(channel_);
  const auto files = FilesIn(stream.AskForSymbol("kiln.v1.Compiler.Lookup"));
  EXPECT_EQ(files.count("kiln/v1/compile.proto"), 1);
  EXPECT_EQ(files.count("kiln/v1/artifact.proto"), 1) << "which it imports";
  const ServerReflectionResponse again = stream.AskForSymbol("kiln.v1.CompileRequest");
  EXPECT_TRUE(again.has_file_descriptor_response());
  EXPECT_TRUE(FilesIn(again).empty());
  // The control: another stream.
  EXPECT_EQ(FilesIn(Stream(channel_).AskForSymbol("kiln.v1.CompileRequest")).size(), files.size());
  ServerReflectionRequest question;
  question.set_file_by_filename("kiln/v1/admin.proto");
  EXPECT_EQ(FilesIn(stream.Ask(question)).count("kiln/v1/admin.proto"), 1);
  EXPECT_TRUE(stream.Done().ok());
}

TEST_F(Reflection, SaysWhatItDoesNotKnowAndGoesOn) {
  Stream stream(channel_);
  const auto code = [](const ServerReflectionResponse& answer) {
    return answer.error_response().error_code();
  };
  EXPECT_EQ(code(stream.AskForSymbol("kiln.v1.Nobody")), grpc::NOT_FOUND);
  EXPECT_TRUE(absl::StrContains(stream.AskForSymbol("kiln.v1.Nobody").error_response().error_message(),
                                "kiln.v1.Nobody"));
  ServerReflectionRequest question;
  EXPECT_EQ(code(stream.Ask(question)), grpc::INVALID_ARGUMENT);
  question.set_file_by_filename("/etc/passwd");
  EXPECT_EQ(code(stream.Ask(question)), grpc::NOT_FOUND);
  question.mutable_file_containing_extension()->set_containing_type("kiln.v1.Manifest");
  EXPECT_EQ(code(stream.Ask(question)), grpc::NOT_FOUND);
  question.set_all_extension_numbers_of_type("kiln.v1.Manifest");
  EXPECT_EQ(stream.Ask(question).all_extension_numbers_response().extension_number_size(), 0);
  question.set_all_extension_numbers_of_type("kiln.v1.Nobody");
  EXPECT_EQ(code(stream.Ask(question)), grpc::NOT_FOUND);
  EXPECT_TRUE(stream.AskForSymbol("kiln.v1.Admin").has_file_descriptor_response());
  EXPECT_TRUE(stream.Done().ok());
}

TEST_F(Reflection, EndsWhereAQuestionIsTooLongOrNone) {
  Stream stream(channel_);
  ServerReflectionRequest question;
  question.set_file_containing_symbol(std::string(4000, 'x'));
  EXPECT_EQ(stream.Ask(question).error_response().error_code(), grpc::NOT_FOUND);
  question.set_file_containing_symbol(std::string(5000, 'x'));
  stream.Write(question);
  EXPECT_EQ(stream.End().error_code(), grpc::INVALID_ARGUMENT);
  WireCall call;
  call.method = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
  call.messages = {"no message"};
  EXPECT_EQ(Say(channel_, call).status.error_code(), grpc::INVALID_ARGUMENT);
}

TEST_F(HastyReflection, ASilentClientIsCutOff) {
  Stream stream(channel_);
  EXPECT_TRUE(stream.AskForSymbol("kiln.v1.Admin").has_file_descriptor_response());
  EXPECT_EQ(stream.End().error_code(), grpc::CANCELLED);
}

}  // namespace
}  // namespace kiln
