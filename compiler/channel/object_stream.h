// Reads what a kilnd streams: messages, and objects from the chunks of FetchObjects.
//
// Threads: pure functions. They block until the call's deadline at most.
#pragma once

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/sync_stream.h"
#include "kiln/v1/compile.pb.h"

namespace kiln {

// The next message that can be read; false at the end. One that does not parse ends gRPC's Read like the end
// does, but Finish would then wait, up to the deadline, for somebody to read the rest.
template <typename Stream, typename Message>
bool ReadNext(Stream& stream, Message* message) {
  constexpr int kEnds = 3;
  for (int end = 0; end < kEnds; ++end) {
    if (stream.Read(message)) return true;
  }
  return false;
}

// Requested objects that have not arrived, by digest; the references are borrowed.
using MissingObjects = absl::flat_hash_map<std::string, const v1::ObjectRef*>;

// Reads the stream of `context` to its end, before Finish. An object that has come whole goes to `take`,
// once, packed and unchecked, and from `missing`. DATA_LOSS for one that was not asked for, or has more bytes
// than it says; then, and where `take` refuses one, the call is cancelled and finished.
absl::Status ReadObjects(grpc::ClientContext* context, grpc::ClientReaderInterface<v1::ObjectChunk>& stream,
                         MissingObjects* missing,
                         absl::FunctionRef<absl::Status(const v1::ObjectRef&, std::string packed)> take);

}  // namespace kiln
