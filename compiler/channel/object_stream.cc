#include "compiler/channel/object_stream.h"

#include <utility>

namespace kiln {

absl::Status ReadObjects(grpc::ClientContext* context, grpc::ClientReaderInterface<v1::ObjectChunk>& stream,
                         MissingObjects* missing,
                         absl::FunctionRef<absl::Status(const v1::ObjectRef&, std::string packed)> take) {
  v1::ObjectChunk chunk;
  std::string digest, packed;
  absl::Status bad;
  while (bad.ok() && ReadNext(stream, &chunk)) {
    if (!chunk.digest().empty()) {
      digest = chunk.digest();
      packed.clear();
    }
    const auto named = missing->find(digest);
    if (named == missing->end() || packed.size() + chunk.data().size() > named->second->packed_size()) {
      bad = absl::DataLossError("the service sent an object that was not asked for, or too much of it");
      break;
    }
    packed += chunk.data();
    if (!chunk.last()) continue;
    bad = take(*named->second, std::exchange(packed, {}));
    missing->erase(named);
  }
  if (!bad.ok()) {
    context->TryCancel();
    stream.Finish();
  }
  return bad;
}

}  // namespace kiln
