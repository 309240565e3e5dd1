#include "server/rpc/compile_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "compiler/graph/caller_notes.h"
#include "compiler/graph/key.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/digest.h"
#include "compiler/support/zstd.h"
#include "server/rpc/request_limits.h"

namespace kiln {
namespace {

// gRPC tells deadlines by the wall's clock; from here on nobody can set them.
MonotonicTime DeadlineOf(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return MonotonicTime::max();
  const auto left = deadline - std::chrono::system_clock::now();
  return std::chrono::steady_clock::now() + std::chrono::duration_cast<MonotonicTime::duration>(
                                                std::min<decltype(left)>(left, std::chrono::hours(24 * 365)));
}

absl::StatusOr<GraphPtr> Unpack(const std::string& packed, uint64_t raw_bytes, const std::string& digest) {
  absl::StatusOr<std::string> graph = ZstdDecompress(packed, raw_bytes);
  if (!graph.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("graph_chunk: no zstd frame of graph_bytes: ", graph.status().message()));
  }
  if (Sha256(*graph) != digest) {
    return absl::InvalidArgumentError("sections.graph_digest: is not the digest of the uploaded graph");
  }
  return std::make_shared<const std::string>(*std::move(graph));
}

std::function<bool()> LostOf(const grpc::CallbackServerContext& context, const ConnectionLost& lost) {
  return [peer = context.peer(), &lost] { return lost(peer); };
}

}  // namespace

// ---- Compile ---------------------------------------------------------------------------------

CompileCall::CompileCall(grpc::CallbackServerContext* context, const Identity* who,
                         std::vector<std::string> hops, uint64_t graph_bytes_max, const ConnectionLost& lost,
                         SilenceWatch* silence, Coordinator* coordinator, Stats* stats)
    : context_(context),
      who_(who),
      hops_(std::move(hops)),
      graph_bytes_max_(graph_bytes_max),
      lost_(LostOf(*context, lost)),
      silence_(silence),
      coordinator_(coordinator),
      scope_(stats),
      id_(coordinator->NewCall()),
      stream_(std::make_shared<FlightStream>(this, silence, context)) {
  absl::MutexLock lock(&mutex_);
  StartReading(Reading::kHeader);
}

void CompileCall::StartReading(Reading what) {
  reading_.what = what;
  if (reading_.started) return;
  // Who sends what nobody wants takes his time.
  if (what != Reading::kWaste) turn_.emplace(*silence_, *context_);
  reading_.started = true;
  StartRead(&message_);
}

void CompileCall::Read(Subscriber::Upload wanted) {
  absl::MutexLock lock(&mutex_);
  if (wanted == Subscriber::Upload::kNow) {
    StartReading(Reading::kGraph);
  } else {
    upload_.packed = std::string();
    turn_.reset();
    StartReading(Reading::kWaste);
  }
}

void CompileCall::OnReadDone(bool ok) {
  bool header;
  {
    absl::MutexLock lock(&mutex_);
    reading_.started = false;
    turn_.reset();
    header = reading_.what == Reading::kHeader;
    if (reading_.what == Reading::kGraph) {
      const absl::Status status = ok ? TakeChunk() : absl::OkStatus();
      if (ok && status.ok()) {
        StartReading(Reading::kGraph);
      } else {
        HandOver(status);
      }
    } else if (reading_.what == Reading::kWaste && ok) {
      StartReading(Reading::kWaste);
    }
  }
  if (header) TakeHeader(ok);
}

void CompileCall::TakeHeader(bool ok) {
  v1::CompileRequest first;
  FlightRequest request;
  absl::Status status = absl::InvalidArgumentError("header: must come first");
  {
    absl::MutexLock lock(&mutex_);
    reading_.what = Reading::kNothing;
    if (ok && grpc::SerializationTraits<v1::CompileRequest>::Deserialize(&message_, &first).ok() &&
        first.has_header()) {
      status = CheckHeader(first.header(), graph_bytes_max_);
    }
    upload_.graph_bytes = first.header().graph_bytes();
    upload_.graph_digest = first.header().sections().graph_digest();
  }
  if (!status.ok()) {
    stream_->End(status);
    return;
  }
  v1::CompileHeader& header = *first.mutable_header();
  header.DiscardUnknownFields();  // a newer client's, which no limit is of
  request.bytes.graph = header.graph_bytes();
  request.ns = NamespaceOf(*who_, header.namespace_());
  request.request_key = RequestKey(header.sections());
  request.compile_key = coordinator_->lookups().KeyOf(request.ns, request.request_key);
  request.caller.tenant = request.ns;
  request.caller.job = JobOf(header.job());
  request.debug = header.want_debug();
  request.hops = hops_;
  request.sections = std::move(*header.mutable_sections());
  request.notes = std::move(*header.mutable_notes());
  LimitNotes(&request.notes);
  FlightCall call;
  call.hints = std::move(*header.mutable_hints());
  call.bytes = call.hints.SpaceUsedLong();
  call.upload_bytes = ZstdPackedMax(request.bytes.graph) + request.bytes.graph;
  request.bytes.header =
      request.sections.SpaceUsedLong() + request.notes.SpaceUsedLong() + call.bytes;  // the compile's too
  request.bytes.all = request.bytes.header + request.bytes.graph;
  request.gang = GangOf(header.gang());
  call.gang = request.gang;
  call.work_class = *WorkClassOf(header.work_class());  // as CheckHeader has seen
  call.deadline = DeadlineOf(*context_);
  call.subscriber = stream_;
  coordinator_->Compile(id_, std::move(request), std::move(call));
}

absl::Status CompileCall::TakeChunk() {
  v1::CompileRequest chunk;
  if (!grpc::SerializationTraits<v1::CompileRequest>::Deserialize(&message_, &chunk).ok() ||
      chunk.kind_case() != v1::CompileRequest::kGraphChunk) {
    return absl::InvalidArgumentError("graph_chunk: a second header");
  }
  if (chunk.graph_chunk().size() > kChunkBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("graph_chunk: more than ", kChunkBytesMax, " bytes"));
  }
  if (upload_.packed.size() + chunk.graph_chunk().size() > ZstdPackedMax(upload_.graph_bytes)) {
    return absl::InvalidArgumentError("graph_chunk: more bytes than graph_bytes can take");
  }
  upload_.packed += chunk.graph_chunk();
  return absl::OkStatus();
}

// The upload is over, well or not.
void CompileCall::HandOver(absl::Status status) {
  reading_.what = Reading::kNothing;
  std::string packed = std::exchange(upload_.packed, std::string());
  if (!status.ok()) {
    coordinator_->Uploaded(id_, std::move(status));
    return;
  }
  coordinator_->Unpack(id_, [packed = std::move(packed), bytes = upload_.graph_bytes,
                             digest = upload_.graph_digest] { return Unpack(packed, bytes, digest); });
}

void CompileCall::OnCancel() {
  coordinator_->Cancel(id_, lost_);
  stream_->OnCancel();
}

void CompileCall::OnDone() {
  coordinator_->Cancel(id_, lost_);  // where a message could not be sent; nothing where it was answered
  stream_->Detach();
  delete this;
}

// ---- Attach ----------------------------------------------------------------------------------

AttachCall::AttachCall(grpc::CallbackServerContext* context, const Identity& who, grpc::ByteBuffer bytes,
                       const ConnectionLost& lost, SilenceWatch* silence, Coordinator* coordinator,
                       Stats* stats)
    : lost_(LostOf(*context, lost)),
      coordinator_(coordinator),
      scope_(stats),
      id_(coordinator->NewCall()),
      stream_(std::make_shared<FlightStream>(this, silence, context)) {
  v1::AttachRequest request;
  absl::Status status = absl::InvalidArgumentError("the message is no AttachRequest");
  FlightCall call;
  if (grpc::SerializationTraits<v1::AttachRequest>::Deserialize(&bytes, &request).ok()) {
    const absl::StatusOr<Caller::Class> work_class = WorkClassOf(request.work_class());
    status = work_class.ok() ? CheckHints(request.hints()) : work_class.status();
    if (work_class.ok()) call.work_class = *work_class;
    if (status.ok()) status = CheckGang(request.gang());
  }
  if (!status.ok()) {
    stream_->End(status);
    return;
  }
  request.DiscardUnknownFields();
  call.hints = std::move(*request.mutable_hints());
  call.bytes = call.hints.SpaceUsedLong();
  call.gang = GangOf(request.gang());
  call.deadline = DeadlineOf(*context);
  call.subscriber = stream_;
  coordinator_->Attach(id_, NamespaceOf(who, request.namespace_()), request.job_id(), std::move(call));
}

void AttachCall::OnCancel() {
  coordinator_->Cancel(id_, lost_);
  stream_->OnCancel();
}

void AttachCall::OnDone() {
  coordinator_->Cancel(id_, lost_);
  stream_->Detach();
  delete this;
}

}  // namespace kiln
