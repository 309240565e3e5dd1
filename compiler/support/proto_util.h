// Wire bytes of messages, the same ones every time. Threads: pure functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message_lite.h"

namespace kiln {

// Fields ascending, maps sorted: the same message gives the same bytes in every process.
std::string SerializeDeterministic(const google::protobuf::MessageLite& message);

// INVALID_ARGUMENT naming `what` when the bytes are no such message. Unknown fields are kept.
absl::Status ParseProto(absl::string_view bytes, absl::string_view what,
                        google::protobuf::MessageLite* message);

}  // namespace kiln
