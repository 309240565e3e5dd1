#include "server/rpc/fetch_call.h"

#include <algorithm>
#include <string>
#include <utility>

#include "compiler/support/compiler_limits.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "server/rpc/request_limits.h"
#include "server/rpc/shared_bytes.h"

namespace kiln {
namespace {

constexpr uint32_t kDataTag = (v1::ObjectChunk::kDataFieldNumber << 3) | 2;  // a field of bytes

// `chunk` with bytes of `packed` as its data, which are not copied.
grpc::ByteBuffer ChunkOf(const v1::ObjectChunk& chunk, const EntryValue& packed, size_t begin, size_t bytes) {
  std::string head = chunk.SerializeAsString();
  {
    google::protobuf::io::StringOutputStream stream(&head);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.WriteTag(kDataTag);
    coded.WriteVarint32(static_cast<uint32_t>(bytes));
  }
  const grpc::Slice slices[] = {grpc::Slice(head), SharedSlice(packed->data() + begin, bytes, packed)};
  return grpc::ByteBuffer(slices, 2);
}

}  // namespace

FetchCall* FetchCall::Start(grpc::CallbackServerContext* context, const Identity& who,
                            const grpc::ByteBuffer& bytes, SilenceWatch* silence, SentObjects* sent,
                            Coordinator* coordinator, Stats* stats) {
  const std::shared_ptr<FetchCall> call(new FetchCall(context, silence, sent, coordinator, stats));
  call->self_ = call;
  call->Begin(who, bytes);
  return call.get();
}

void FetchCall::Begin(const Identity& who, grpc::ByteBuffer bytes) {
  absl::Status status = absl::InvalidArgumentError("the message is no FetchObjectsRequest");
  if (grpc::SerializationTraits<v1::FetchObjectsRequest>::Deserialize(&bytes, &request_).ok()) {
    status = CheckFetch(request_);
    request_.DiscardUnknownFields();
  }
  if (!status.ok()) {
    End(status);
    return;
  }
  request_.set_namespace_(NamespaceOf(who, request_.namespace_()));
  const uint64_t keeps = request_.SpaceUsedLong() + request_.digests_size() * sizeof(uint64_t);
  absl::StatusOr<SentObjects::Share> kept = objects_->Reserve(request_.namespace_(), keeps);
  if (!kept.ok()) {
    End(kept.status());
    return;
  }
  absl::MutexLock lock(&mutex_);
  kept_ = *std::move(kept);
  ReadNext();
}

void FetchCall::ReadNext() {
  coordinator_->Work([call = self_] { call->ReadOne(); });
}

void FetchCall::ReadOne() {
  absl::MutexLock lock(&mutex_);
  if (!packed_bytes_.has_value()) {
    absl::StatusOr<std::vector<uint64_t>> checked = coordinator_->CheckFetch(request_);
    if (absl::IsNotFound(checked.status())) {
      RefuseLater(checked.status());
      return;
    }
    if (!checked.ok() || checked->empty()) {
      End(checked.status());
      return;
    }
    packed_bytes_ = *std::move(checked);
  }
  object_.packed = nullptr;  // first: the next may be in its place
  absl::StatusOr<EntryValue> packed = Next();
  if (!packed.ok()) {
    End(packed.status());
    return;
  }
  object_.packed = *std::move(packed);
  object_.sent = 0;
  ++object_.next;
  SendChunk();
}

absl::StatusOr<EntryValue> FetchCall::Next() {
  const std::string& digest = request_.digests(object_.next);
  return objects_->Get(request_.namespace_(), digest, (*packed_bytes_)[object_.next],
                       [&] { return coordinator_->ReadObject(request_, digest); });
}

void FetchCall::End(const absl::Status& status) { Finish(EndOfCall(status, context_)); }

void FetchCall::RefuseLater(const absl::Status& status) {
  const absl::Duration passed = absl::FromChrono(MonotonicNow() - came_);
  const absl::Duration left = absl::Ceil(passed, kNotFoundAfter) - passed;
  // gRPC holds the call until it has its answer, and the alarm until it has rung.
  refusal_.Set(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                            gpr_time_from_nanos(absl::ToInt64Nanoseconds(left), GPR_TIMESPAN)),
               [this, status](bool) { End(status); });
}

void FetchCall::SendChunk() {
  const size_t bytes = std::min(kChunkBytesMax, object_.packed->size() - object_.sent);
  v1::ObjectChunk chunk;
  if (object_.sent == 0) chunk.set_digest(request_.digests(object_.next - 1));
  chunk.set_offset(object_.sent);
  chunk.set_last(object_.sent + bytes >= object_.packed->size());
  sending_ = ChunkOf(chunk, object_.packed, object_.sent, bytes);
  object_.sent += bytes;
  turn_.emplace(*silence_, *context_);
  StartWrite(&sending_);
}

void FetchCall::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  turn_.reset();
  if (!ok) {
    End(absl::CancelledError("the caller left"));
  } else if (object_.sent < object_.packed->size()) {
    SendChunk();
  } else if (object_.next < request_.digests_size()) {
    ReadNext();
  } else {
    End(absl::OkStatus());
  }
}

}  // namespace kiln
