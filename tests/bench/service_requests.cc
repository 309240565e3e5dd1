// Brings a kilnd that runs scripted workers (tests/fault/scripted_worker.cc) to where it can be measured, and
// writes the messages that service_load sends:
//   service_requests --socket PATH --directory DIRECTORY [--tls DIRECTORY] [--kernels N] [--object-bytes N]
//     hit      a Lookup of what is stored     objects   a FetchObjects of two large objects
//     miss     a Lookup of what is not        wait.*    a Compile that never ends: its header, its graph
// Prints one line of JSON: the bytes of each reply.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <random>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "compiler/graph/key.h"
#include "compiler/support/digest.h"
#include "compiler/support/status_macros.h"
#include "compiler/support/zstd.h"
#include "grpcpp/grpcpp.h"
#include "kiln/v1/compile.grpc.pb.h"
#include "tests/bench/service_tls.h"

namespace kiln {
namespace {

constexpr char kNamespace[] = "default";

// Printable and next to incompressible.
std::string Noise(size_t bytes) {
  std::minstd_rand random(7);
  std::string text(bytes, ' ');
  for (char& letter : text) letter = static_cast<char>('0' + random() / 8 % 64);
  return text;
}

v1::CompileHeader HeaderOf(const std::string& script) {
  v1::Target target;
  target.set_triple("x86_64-linux-gnu");
  v1::CompileHeader header;
  header.set_namespace_(kNamespace);
  header.mutable_sections()->set_target(target.SerializeAsString());
  header.mutable_sections()->set_graph_digest(Sha256(script));
  header.set_graph_bytes(script.size());
  return header;
}

class Client {
 public:
  // `tls`: the certificates' directory, or empty; `socket` is HOST:PORT with it.
  Client(const std::string& socket, const std::string& tls, std::string directory)
      : directory_(std::move(directory)) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    stub_ = v1::Compiler::NewStub(
        tls.empty()
            ? grpc::CreateCustomChannel("unix:" + socket, grpc::InsecureChannelCredentials(), arguments)
            : grpc::CreateCustomChannel(socket, bench::ClientTls(tls, "load"), arguments));
  }

  absl::StatusOr<v1::Manifest> Compile(const std::string& script) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    auto stream = stub_->Compile(&context);
    v1::CompileRequest request;
    *request.mutable_header() = HeaderOf(script);
    stream->Write(request);
    const std::string packed = ZstdCompress(script);
    for (size_t at = 0; at < packed.size(); at += kChunkBytes) {
      request.set_graph_chunk(packed.substr(at, kChunkBytes));
      if (!stream->Write(request)) break;
    }
    stream->WritesDone();
    v1::Manifest manifest;
    std::string why = "no result";
    for (v1::CompileEvent event; stream->Read(&event);) {
      if (event.has_done() && event.done().has_manifest()) {
        manifest.ParseFromString(event.done().manifest().manifest());
        why.clear();
      }
      if (event.has_failed()) why = event.failed().reason();
    }
    const grpc::Status status = stream->Finish();
    if (!status.ok()) why = status.error_message();
    if (!why.empty()) return absl::UnavailableError(absl::StrCat("compile a script: ", why));
    return manifest;
  }

  // Writes the request and returns the bytes of the reply, whose kind must be the one that is wanted.
  absl::StatusOr<size_t> WriteLookup(const std::string& name, const std::string& request_key,
                                     v1::LookupReply::KindCase wanted) {
    v1::LookupRequest request;
    request.set_namespace_(kNamespace);
    request.set_request_key(request_key);
    Write(name, request.SerializeAsString());
    grpc::ClientContext context;
    v1::LookupReply reply;
    if (const grpc::Status status = stub_->Lookup(&context, request, &reply); !status.ok()) {
      return absl::UnavailableError(status.error_message());
    }
    if (reply.kind_case() != wanted) return absl::InternalError(absl::StrCat(name, ": another answer"));
    return reply.ByteSizeLong();
  }

  // The same for all objects of a manifest.
  absl::StatusOr<size_t> WriteFetch(const std::string& name, const v1::Manifest& manifest, size_t* messages) {
    v1::FetchObjectsRequest request;
    request.set_namespace_(kNamespace);
    request.set_compile_key(manifest.compile_key());
    request.set_variant_id(manifest.variant_id());
    for (const v1::ManifestKernel& kernel : manifest.kernels()) {
      request.add_digests(kernel.object().digest());
      request.add_digests(kernel.loop_ir().digest());
    }
    Write(name, request.SerializeAsString());
    grpc::ClientContext context;
    auto reader = stub_->FetchObjects(&context, request);
    size_t bytes = 0;
    *messages = 0;
    for (v1::ObjectChunk chunk; reader->Read(&chunk); ++*messages) bytes += chunk.ByteSizeLong();
    const grpc::Status status = reader->Finish();
    if (!status.ok()) return absl::UnavailableError(absl::StrCat("fetch objects: ", status.error_message()));
    return bytes;
  }

  absl::StatusOr<std::string> Fingerprint() {
    v1::HelloRequest request;
    request.set_protocol_min(1);
    request.set_protocol_max(1);
    grpc::ClientContext context;
    v1::HelloReply reply;
    if (const grpc::Status status = stub_->Hello(&context, request, &reply); !status.ok()) {
      return absl::UnavailableError(absl::StrCat("hello: ", status.error_message()));
    }
    return reply.compiler_fingerprint();
  }

  void WriteWait(const std::string& script) {
    v1::CompileRequest request;
    *request.mutable_header() = HeaderOf(script);
    Write("wait.header", request.SerializeAsString());
    request.set_graph_chunk(ZstdCompress(script));
    Write("wait.graph", request.SerializeAsString());
  }

 private:
  static constexpr size_t kChunkBytes = 1 << 20;

  void Write(const std::string& name, const std::string& bytes) {
    std::ofstream(absl::StrCat(directory_, "/", name), std::ios::binary) << bytes;
  }

  const std::string directory_;
  std::unique_ptr<v1::Compiler::Stub> stub_;
};

absl::Status Prepare(Client* client, int kernels, size_t object_bytes) {
  const std::string hit = absl::StrCat("kernels ", kernels, "\nname hit\n");
  KILN_RETURN_IF_ERROR(client->Compile(hit).status());
  KILN_ASSIGN_OR_RETURN(
      const size_t hit_bytes,
      client->WriteLookup("hit", RequestKey(HeaderOf(hit).sections()), v1::LookupReply::kHit));
  KILN_ASSIGN_OR_RETURN(const size_t miss_bytes,
                        client->WriteLookup("miss", Sha256("nobody's"), v1::LookupReply::kMiss));
  KILN_ASSIGN_OR_RETURN(const v1::Manifest large,
                        client->Compile(absl::StrCat("name ", Noise(object_bytes), "\n")));
  size_t messages = 0;
  KILN_ASSIGN_OR_RETURN(const size_t objects, client->WriteFetch("objects", large, &messages));
  client->WriteWait("hang\n");
  KILN_ASSIGN_OR_RETURN(const std::string fingerprint, client->Fingerprint());
  printf(
      "{\"hit\": %zu, \"miss\": %zu, \"objects\": %zu, \"messages\": %zu, \"namespace\": \"%s\", "
      "\"fingerprint\": \"%s\"}\n",
      hit_bytes, miss_bytes, objects, messages, large.namespace_().c_str(), fingerprint.c_str());
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  std::string socket, tls, directory;
  int kernels = 120;
  size_t object_bytes = 8u << 20;
  CLI::App app("Fills a kilnd with scripted workers and writes the requests that service_load sends.");
  app.add_option("--socket", socket, "kilnd's, or HOST:PORT with --tls")->required();
  app.add_option("--tls", tls, "Directory of load.crt, load.key and ca.crt");
  app.add_option("--directory", directory, "Where the requests go")->required();
  app.add_option("--kernels", kernels, "Of the program that is hit");
  app.add_option("--object-bytes", object_bytes, "Of each of two large objects, before packing");
  CLI11_PARSE(app, argc, argv);
  Client client(socket, tls, directory);
  const absl::Status status = Prepare(&client, kernels, object_bytes);
  if (!status.ok()) fprintf(stderr, "service_requests: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace kiln

int main(int argc, char** argv) { return kiln::Main(argc, argv); }
