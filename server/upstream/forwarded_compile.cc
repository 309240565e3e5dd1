#include "server/upstream/forwarded_compile.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "compiler/support/compiler_limits.h"

namespace kiln {
namespace {

// A message that does not parse ends a read as the end does, and the call would then wait for somebody to
// read the rest.
constexpr int kEnds = 3;

}  // namespace

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

std::optional<absl::Duration> ComeAgainOf(const grpc::ClientContext& context) {
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto found = metadata.find("grpc-retry-pushback-ms");
  int64_t milliseconds = 0;
  if (found == metadata.end() ||
      !absl::SimpleAtoi(absl::string_view(found->second.data(), found->second.size()), &milliseconds) ||
      milliseconds < 0) {
    return std::nullopt;
  }
  return absl::Milliseconds(milliseconds);
}

std::shared_ptr<ForwardedCompile> ForwardedCompile::Start(
    std::shared_ptr<v1::Compiler::Stub> stub, const std::function<void(grpc::ClientContext*)>& prepare,
    v1::CompileHeader header, std::shared_ptr<const std::string> packed, Listener listener) {
  std::shared_ptr<ForwardedCompile> call(
      new ForwardedCompile(std::move(stub), std::move(packed), std::move(listener)));
  call->self_ = call;
  prepare(&call->context_);
  *call->request_.mutable_header() = std::move(header);
  call->stub_->async()->Compile(&call->context_, call.get());
  call->StartWrite(&call->request_);
  call->StartRead(&call->event_);
  call->StartCall();
  return call;
}

void ForwardedCompile::OnWriteDone(bool ok) {
  if (!ok) return;
  if (sent_ == packed_->size()) {
    StartWritesDone();
    return;
  }
  const size_t size = std::min<size_t>(kChunkBytesMax, packed_->size() - sent_);
  request_.set_graph_chunk(packed_->substr(sent_, size));
  sent_ += size;
  StartWrite(&request_);
}

void ForwardedCompile::OnReadDone(bool ok) {
  if (!ok) {
    if (++ends_ < kEnds) StartRead(&event_);
    return;
  }
  switch (event_.kind_case()) {
    case v1::CompileEvent::kDone:
      if (end_.manifest.has_value()) break;
      end_.manifest = std::move(*event_.mutable_done()->mutable_manifest());
      end_.workers_lost = event_.done().workers_lost();
      context_.TryCancel();  // how its store takes it is the upstream's matter
      break;
    case v1::CompileEvent::kFailed: {
      const int code = event_.failed().code();
      end_.verdict = absl::Status(
          code > 0 && code <= 16 ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kInternal,
          event_.failed().reason());
      end_.without_gang = event_.failed().no_verdict();
      break;
    }
    case v1::CompileEvent::kPlanned:
    case v1::CompileEvent::kEmitted:
    case v1::CompileEvent::kTuned: listener_.progress(std::move(event_)); break;
    default: break;  // its own places and files
  }
  event_.Clear();
  StartRead(&event_);
}

void ForwardedCompile::OnDone(const grpc::Status& status) {
  const std::shared_ptr<ForwardedCompile> self = std::move(self_);
  end_.call =
      status.ok() ? absl::InternalError("the upstream ended a compile without a result") : FromGrpc(status);
  end_.come_again = ComeAgainOf(context_);
  listener_.end(std::move(end_));
}

}  // namespace kiln
