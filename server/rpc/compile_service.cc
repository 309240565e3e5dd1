#include "server/rpc/compile_service.h"

#include "absl/strings/str_cat.h"
#include "compiler/graph/caller_notes.h"
#include "compiler/support/digest.h"
#include "compiler/support/limits.h"
#include "compiler/support/status_macros.h"
#include "compiler/support/zstd.h"
#include "compiler/worker/build_id.h"

namespace kiln {
namespace {

// What zstd can at most make of incompressible bytes, generously.
uint64_t PackedMax(uint64_t raw) { return raw + raw / 64 + 4096; }

absl::Status CheckNamespace(const std::string& ns) {
  if (ns.size() <= kNamespaceBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("namespace: longer than ", kNamespaceBytesMax, " bytes"));
}

absl::Status CheckDigest(absl::string_view field, const std::string& digest) {
  if (digest.size() == kDigestBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": is not ", kDigestBytes, " bytes"));
}

absl::Status CheckHints(const v1::Hints& hints) {
  if (hints.values_size() <= kHintsMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("hints: more than ", kHintsMax));
}

absl::Time DeadlineOf(const grpc::ServerContext& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return absl::FromChrono(deadline);
}

absl::Status CheckSection(absl::string_view field, const std::string& bytes, size_t limit) {
  if (bytes.size() <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("sections.", field, ": more than ", limit, " bytes"));
}

absl::Status CheckSections(const v1::RequestSections& sections) {
  KILN_RETURN_IF_ERROR(CheckSection("options", sections.options(), kSectionBytesMax));
  KILN_RETURN_IF_ERROR(CheckSection("target", sections.target(), kSectionBytesMax));
  KILN_RETURN_IF_ERROR(CheckSection("numerics", sections.numerics(), kSectionBytesMax));
  KILN_RETURN_IF_ERROR(CheckSection("facts", sections.facts(), kFactsBytesMax));
  KILN_RETURN_IF_ERROR(CheckSection("environment", sections.environment(), kSectionBytesMax));
  return CheckDigest("sections.graph_digest", sections.graph_digest());
}

absl::Status CheckHeader(const v1::CompileHeader& header, uint64_t graph_bytes_max) {
  KILN_RETURN_IF_ERROR(CheckNamespace(header.namespace_()));
  KILN_RETURN_IF_ERROR(CheckHints(header.hints()));
  KILN_RETURN_IF_ERROR(CheckSections(header.sections()));
  if (header.graph_bytes() == 0) return absl::InvalidArgumentError("graph_bytes: no graph");
  if (header.graph_bytes() > graph_bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("graph_bytes: ", header.graph_bytes(), " is more than ", graph_bytes_max));
  }
  return absl::OkStatus();
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

grpc::Status CompileService::Hello(grpc::ServerContext*, const v1::HelloRequest* request,
                                   v1::HelloReply* reply) {
  CallScope scope(stats_);
  if (request->protocol_min() > kProtocolVersion || request->protocol_max() < kProtocolVersion) {
    return ToGrpc(absl::FailedPreconditionError(absl::StrCat("this daemon speaks protocol ", kProtocolVersion,
                                                             ", the client ", request->protocol_min(), " to ",
                                                             request->protocol_max())));
  }
  const v1::WorkerHello& worker = pool_->hello();
  reply->set_protocol(kProtocolVersion);
  reply->set_build_id(OwnBuildId());
  reply->set_compiler_fingerprint(worker.compiler_fingerprint());
  reply->set_program_format(worker.program_format());
  reply->set_graph_format(worker.graph_format());
  reply->set_graph_bytes_max(graph_bytes_max_);
  *reply->mutable_targets() = worker.targets();
  return grpc::Status::OK;
}

grpc::Status CompileService::Lookup(grpc::ServerContext*, const v1::LookupRequest* request,
                                    v1::LookupReply* reply) {
  CallScope scope(stats_);
  absl::Status status = CheckNamespace(request->namespace_());
  if (status.ok()) status = CheckDigest("request_key", request->request_key());
  if (status.ok()) status = CheckHints(request->hints());
  if (!status.ok()) return ToGrpc(status);
  *reply = coordinator_->Lookup(*request);
  return grpc::Status::OK;
}

template <typename Stream>
Caller CompileService::MakeCaller(const std::string& ns, const v1::Hints& hints, grpc::ServerContext* context,
                                  Stream* stream) {
  Caller caller;
  caller.ns = ns;
  caller.hints = hints;
  caller.deadline = DeadlineOf(*context);
  caller.gone = [context] { return context->IsCancelled(); };
  caller.send = [this, context, stream](const v1::CompileEvent& event) {
    const SilenceWatch::Turn turn(silence_, *context);
    return stream->Write(event);
  };
  return caller;
}

absl::StatusOr<std::string> CompileService::ReadGraph(
    const v1::CompileHeader& header, grpc::ServerContext& context,
    grpc::ServerReaderWriter<v1::CompileEvent, v1::CompileRequest>* stream) {
  const uint64_t packed_max = PackedMax(header.graph_bytes());
  std::string packed;
  v1::CompileRequest message;
  const auto read = [&] {
    const SilenceWatch::Turn turn(silence_, context);
    return stream->Read(&message);
  };
  while (read()) {
    if (message.kind_case() != v1::CompileRequest::kGraphChunk) {
      return absl::InvalidArgumentError("graph_chunk: a second header");
    }
    if (message.graph_chunk().size() > kChunkBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat("graph_chunk: more than ", kChunkBytesMax, " bytes"));
    }
    if (packed.size() + message.graph_chunk().size() > packed_max) {
      return absl::InvalidArgumentError("graph_chunk: more bytes than graph_bytes can take");
    }
    packed += message.graph_chunk();
  }
  absl::StatusOr<std::string> graph = ZstdDecompress(packed, header.graph_bytes());
  if (!graph.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("graph_chunk: no zstd frame of graph_bytes: ", graph.status().message()));
  }
  if (Sha256(*graph) != header.sections().graph_digest()) {
    return absl::InvalidArgumentError("sections.graph_digest: is not the digest of the uploaded graph");
  }
  return graph;
}

grpc::Status CompileService::Compile(grpc::ServerContext* context,
                                     grpc::ServerReaderWriter<v1::CompileEvent, v1::CompileRequest>* stream) {
  CallScope scope(stats_);
  v1::CompileRequest first;
  {
    const SilenceWatch::Turn turn(silence_, *context);
    if (!stream->Read(&first)) return ToGrpc(absl::InvalidArgumentError("header: must come first"));
  }
  if (!first.has_header()) {
    return ToGrpc(absl::InvalidArgumentError("header: must come first"));
  }
  const v1::CompileHeader& header = first.header();
  if (absl::Status status = CheckHeader(header, graph_bytes_max_); !status.ok()) return ToGrpc(status);
  Upload upload;
  upload.sections = header.sections();
  upload.notes = header.notes();
  LimitNotes(&upload.notes);
  upload.want_debug = header.want_debug();
  upload.read_graph = [&] { return ReadGraph(header, *context, stream); };
  return ToGrpc(
      coordinator_->Compile(MakeCaller(header.namespace_(), header.hints(), context, stream), upload));
}

grpc::Status CompileService::Attach(grpc::ServerContext* context, const v1::AttachRequest* request,
                                    grpc::ServerWriter<v1::CompileEvent>* writer) {
  CallScope scope(stats_);
  if (absl::Status status = CheckHints(request->hints()); !status.ok()) return ToGrpc(status);
  return ToGrpc(coordinator_->Attach(MakeCaller(request->namespace_(), request->hints(), context, writer),
                                     request->job_id()));
}

grpc::Status CompileService::FetchObjects(grpc::ServerContext* context,
                                          const v1::FetchObjectsRequest* request,
                                          grpc::ServerWriter<v1::ObjectChunk>* writer) {
  CallScope scope(stats_);
  absl::Status status = CheckDigest("compile_key", request->compile_key());
  if (status.ok()) status = CheckDigest("variant_id", request->variant_id());
  if (status.ok() && request->digests_size() > kFetchDigestsMax) {
    status = absl::InvalidArgumentError(absl::StrCat("digests: more than ", kFetchDigestsMax));
  }
  if (!status.ok()) return ToGrpc(status);
  return ToGrpc(coordinator_->FetchObjects(*request, [&](const Coordinator::FetchedObject& object) {
    const std::string& packed = *object.packed;
    for (size_t offset = 0; offset < packed.size(); offset += kChunkBytesMax) {
      v1::ObjectChunk chunk;
      if (offset == 0) chunk.set_digest(object.digest);
      chunk.set_offset(offset);
      chunk.set_data(packed.substr(offset, kChunkBytesMax));
      chunk.set_last(offset + kChunkBytesMax >= packed.size());
      const SilenceWatch::Turn turn(silence_, *context);
      if (!writer->Write(chunk)) return false;
    }
    return true;
  }));
}

grpc::Status CompileService::ReportUse(grpc::ServerContext*, const v1::ReportUseRequest* request,
                                       v1::ReportUseReply*) {
  CallScope scope(stats_);
  absl::Status status = CheckDigest("compile_key", request->compile_key());
  if (status.ok()) status = CheckDigest("variant_id", request->variant_id());
  if (!status.ok()) return ToGrpc(status);
  coordinator_->ReportUse(*request);
  return grpc::Status::OK;
}

}  // namespace kiln
