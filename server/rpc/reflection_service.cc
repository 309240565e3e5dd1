#include "server/rpc/reflection_service.h"

#include <cstddef>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "server/rpc/reflection_answers.h"
#include "server/rpc/refused_call.h"
#include "server/rpc/request_limits.h"
#include "server/server_limits.h"

namespace kiln {
namespace {

using grpc::reflection::v1::ServerReflectionRequest;
using grpc::reflection::v1::ServerReflectionResponse;

// One stream. gRPC owns it: it deletes itself. The lock orders its callbacks, of which one runs at a time.
class ReflectionCall final : public ReflectionStream {
 public:
  ReflectionCall(grpc::CallbackServerContext* context, SilenceWatch* silence, Stats* stats)
      : context_(context), silence_(silence), scope_(stats) {
    absl::MutexLock lock(&mutex_);
    turn_.emplace(*silence_, *context_);
    StartRead(&message_);
  }

  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    turn_.reset();
    if (!ok) {  // no more questions
      Finish(grpc::Status::OK);
      return;
    }
    ServerReflectionRequest question;
    if (message_.Length() > kReflectionBytesMax) {
      Finish({grpc::StatusCode::INVALID_ARGUMENT,
              absl::StrCat("a question of more than ", kReflectionBytesMax, " bytes")});
      return;
    }
    if (!grpc::SerializationTraits<ServerReflectionRequest>::Deserialize(&message_, &question).ok()) {
      Finish({grpc::StatusCode::INVALID_ARGUMENT, "not a ServerReflectionRequest"});
      return;
    }
    answer_.Clear();
    bool own_buffer = false;
    const grpc::Status status = grpc::SerializationTraits<ServerReflectionResponse>::Serialize(
        answers_.Answer(question), &answer_, &own_buffer);
    if (!status.ok()) {
      Finish(status);
      return;
    }
    turn_.emplace(*silence_, *context_);
    StartWrite(&answer_);
  }

  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    turn_.reset();
    if (!ok) {
      Finish({grpc::StatusCode::CANCELLED, "the caller left"});
      return;
    }
    turn_.emplace(*silence_, *context_);
    StartRead(&message_);
  }

  void OnDone() override { delete this; }

 private:
  grpc::CallbackServerContext* const context_;
  SilenceWatch* const silence_;
  const CallScope scope_;
  absl::Mutex mutex_;
  ReflectionAnswers answers_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer message_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer answer_ ABSL_GUARDED_BY(mutex_);
  std::optional<SilenceWatch::Turn> turn_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

ReflectionStream* AnswerReflection(grpc::CallbackServerContext* context, const Gate& gate,
                                   SilenceWatch* silence, Stats* stats) {
  if (const auto who = gate.Admit(*context, Rpc::kReflect); !who.ok())
    return new RefusedCall<ReflectionStream>(who.status());
  return new ReflectionCall(context, silence, stats);
}

}  // namespace kiln
