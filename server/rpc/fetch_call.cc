#include "server/rpc/fetch_call.h"

#include <algorithm>
#include <string>
#include <utility>

#include "compiler/support/limits.h"
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
                            const grpc::ByteBuffer& bytes, SilenceWatch* silence, Coordinator* coordinator,
                            Stats* stats) {
  const std::shared_ptr<FetchCall> call(new FetchCall(context, silence, coordinator, stats));
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
    Finish(ToGrpc(status));
    return;
  }
  request_.set_namespace_(NamespaceOf(who, request_.namespace_()));
  absl::MutexLock lock(&mutex_);
  ReadNext();
}

void FetchCall::ReadNext() {
  coordinator_->Work([call = self_] { call->ReadOne(); });
}

void FetchCall::ReadOne() {
  absl::MutexLock lock(&mutex_);
  absl::Status status;
  if (!checked_) {
    absl::StatusOr<std::shared_ptr<const Artifact>> fresh = coordinator_->CheckFetch(request_);
    status = fresh.status();
    if (fresh.ok()) fresh_ = *std::move(fresh);
    checked_ = true;
    if (absl::IsNotFound(status)) {
      RefuseLater(status);
      return;
    }
  }
  if (status.ok() && next_ < request_.digests_size()) {
    absl::StatusOr<EntryValue> packed =
        coordinator_->ReadObject(request_, fresh_.get(), request_.digests(next_));
    status = packed.status();
    if (packed.ok()) {
      packed_ = *std::move(packed);
      ++next_;
      sent_ = 0;
      SendChunk();
      return;
    }
  }
  Finish(ToGrpc(status));
}

void FetchCall::RefuseLater(const absl::Status& status) {
  const absl::Duration passed = absl::FromChrono(MonotonicNow() - came_);
  const absl::Duration left = absl::Ceil(passed, kNotFoundAfter) - passed;
  // gRPC holds the call until it has its answer, and the alarm until it has rung.
  refusal_.Set(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                            gpr_time_from_nanos(absl::ToInt64Nanoseconds(left), GPR_TIMESPAN)),
               [this, status](bool) { Finish(ToGrpc(status)); });
}

void FetchCall::SendChunk() {
  const size_t bytes = std::min(kChunkBytesMax, packed_->size() - sent_);
  v1::ObjectChunk chunk;
  if (sent_ == 0) chunk.set_digest(request_.digests(next_ - 1));
  chunk.set_offset(sent_);
  chunk.set_last(sent_ + bytes >= packed_->size());
  sending_ = ChunkOf(chunk, packed_, sent_, bytes);
  sent_ += bytes;
  turn_.emplace(*silence_, *context_);
  StartWrite(&sending_);
}

void FetchCall::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  turn_.reset();
  if (!ok) {
    Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the caller left"));
  } else if (sent_ < packed_->size()) {
    SendChunk();
  } else if (next_ < request_.digests_size()) {
    ReadNext();
  } else {
    Finish(grpc::Status::OK);
  }
}

}  // namespace kiln
