#include "client/src/call_messages.h"

#include <string>
#include <utility>

#include "absl/strings/cord.h"

namespace kiln {

v1::CallOptions ToMessage(const ClientOptions& options) {
  v1::CallOptions message;
  message.set_format(kCallFormat);
  message.set_address(options.address);
  message.set_upstream(options.upstream);
  message.set_tls_authority(options.tls.authority);
  message.set_tls_certificate(options.tls.certificate);
  message.set_tls_key(options.tls.key);
  message.set_daemon_binary(options.daemon_binary);
  message.set_runtime_dir(options.runtime_dir);
  message.set_store_dir(options.store_dir);
  message.set_name_space(options.name_space);
  message.set_job(options.job);
  for (const std::string& key : options.trusted_keys) message.add_trusted_keys(key);
  message.set_background(options.background);
  message.set_connect_seconds(options.connect_seconds);
  message.set_compile_seconds(options.compile_seconds);
  message.set_idle_seconds(options.idle_seconds);
  message.set_cublas_lt(options.cuda_libraries.cublas_lt);
  message.set_cudnn(options.cuda_libraries.cudnn);
  message.set_cuda_driver(options.cuda_libraries.driver);
  return message;
}

absl::StatusOr<ClientOptions> FromMessage(const v1::CallOptions& message) {
  if (message.format() != kCallFormat) {
    return absl::FailedPreconditionError("kiln-call is of another build than kiln: install both from one");
  }
  ClientOptions options;
  options.address = message.address();
  options.upstream = message.upstream();
  options.tls.authority = message.tls_authority();
  options.tls.certificate = message.tls_certificate();
  options.tls.key = message.tls_key();
  options.daemon_binary = message.daemon_binary();
  options.runtime_dir = message.runtime_dir();
  options.store_dir = message.store_dir();
  options.name_space = message.name_space();
  options.job = message.job();
  options.trusted_keys.assign(message.trusted_keys().begin(), message.trusted_keys().end());
  options.background = message.background();
  options.connect_seconds = message.connect_seconds();
  options.compile_seconds = message.compile_seconds();
  options.idle_seconds = message.idle_seconds();
  options.cuda_libraries = {message.cublas_lt(), message.cudnn(), message.cuda_driver()};
  return options;
}

v1::CallInput ToMessage(const CompileRequestInput& input, bool compile) {
  v1::CallInput message;
  message.set_graph(input.graph);
  *message.mutable_sections() = input.sections;
  message.set_request_key(input.request_key);
  *message.mutable_hints() = input.hints;
  *message.mutable_notes() = input.notes;
  message.set_want_loop_ir(input.want_loop_ir);
  message.set_want_debug(input.want_debug);
  *message.mutable_gang() = input.gang;
  message.set_compile(compile);
  return message;
}

CompileRequestInput FromMessage(v1::CallInput message) {
  CompileRequestInput input;
  input.graph = std::move(*message.mutable_graph());
  input.sections = std::move(*message.mutable_sections());
  input.request_key = message.request_key();
  input.hints = std::move(*message.mutable_hints());
  input.notes = std::move(*message.mutable_notes());
  input.want_loop_ir = message.want_loop_ir();
  input.want_debug = message.want_debug();
  input.gang = message.gang();
  return input;
}

v1::CallArtifact ToMessage(const CompiledArtifact& artifact) {
  v1::CallArtifact message;
  *message.mutable_manifest() = artifact.manifest;
  message.set_hit(artifact.hit);
  message.set_joined(artifact.joined);
  message.set_not_kept(artifact.not_kept);
  for (const std::string& text : artifact.recovered) message.add_recovered(text);
  for (const std::string& text : artifact.refused) message.add_refused(text);
  message.set_uploaded_bytes(artifact.uploaded_bytes);
  message.set_fetched_objects(artifact.fetched_objects);
  message.set_connect_seconds(artifact.connect_seconds);
  message.set_lookup_seconds(artifact.lookup_seconds);
  message.set_compile_seconds(artifact.compile_seconds);
  message.set_fetch_seconds(artifact.fetch_seconds);
  return message;
}

void FromMessage(v1::CallArtifact message, CompiledArtifact* artifact) {
  artifact->manifest = std::move(*message.mutable_manifest());
  artifact->hit = message.hit();
  artifact->joined = message.joined();
  artifact->not_kept = message.not_kept();
  artifact->recovered.assign(message.recovered().begin(), message.recovered().end());
  artifact->refused.assign(message.refused().begin(), message.refused().end());
  artifact->uploaded_bytes = message.uploaded_bytes();
  artifact->fetched_objects = message.fetched_objects();
  artifact->connect_seconds = message.connect_seconds();
  artifact->lookup_seconds = message.lookup_seconds();
  artifact->compile_seconds = message.compile_seconds();
  artifact->fetch_seconds = message.fetch_seconds();
}

v1::CallReply::End ToMessage(const absl::Status& status) {
  v1::CallReply::End message;
  message.set_code(static_cast<int>(status.code()));
  message.set_message(std::string(status.message()));
  status.ForEachPayload([&](absl::string_view type_url, const absl::Cord& contents) {
    v1::CallReply::Payload& payload = *message.add_payloads();
    payload.set_type_url(std::string(type_url));
    payload.set_contents(std::string(contents));
  });
  return message;
}

absl::Status FromMessage(const v1::CallReply::End& message) {
  absl::Status status(static_cast<absl::StatusCode>(message.code()), message.message());
  for (const v1::CallReply::Payload& payload : message.payloads()) {
    status.SetPayload(payload.type_url(), absl::Cord(payload.contents()));
  }
  return status;
}

}  // namespace kiln
