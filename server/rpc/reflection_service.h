// gRPC's server reflection (grpc.reflection.v1 and v1alpha): grpcurl and its like need no .proto file.
// Whoever has a role may ask; the answers are reflection_answers.h's.
//
// gRPC's own plugin (grpc++_reflection) registers itself with every server of a process that links it, asks
// no gate and has threads.
//
// Thread-safe; a call holds no thread. A client that is silent when it has to ask or to take an answer for
// longer than admission.silent_seconds_max is cut off (CANCELLED). Limits: questions of 4 KiB; a longer one,
// or one that does not parse, ends the call with INVALID_ARGUMENT.
#pragma once

#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "server/auth/gate.h"
#include "server/observe/stats.h"
#include "server/rpc/silence_watch.h"

namespace kiln {

using ReflectionStream = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

// All outlive the call.
ReflectionStream* AnswerReflection(grpc::CallbackServerContext* context, const Gate& gate,
                                   SilenceWatch* silence, Stats* stats);

// `Version`: grpc::reflection::v1::ServerReflection, or v1alpha's. On the wire they are alike.
template <typename Version>
class ReflectionService final
    : public Version::template WithRawCallbackMethod_ServerReflectionInfo<typename Version::Service> {
 public:
  // `gate`: of the server that the service is registered with. All else outlives the service.
  ReflectionService(const Gate& gate, SilenceWatch* silence, Stats* stats)
      : gate_(gate), silence_(silence), stats_(stats) {}

  ReflectionStream* ServerReflectionInfo(grpc::CallbackServerContext* context) override {
    return AnswerReflection(context, gate_, silence_, stats_);
  }

 private:
  const Gate gate_;
  SilenceWatch* const silence_;
  Stats* const stats_;
};

}  // namespace kiln
