// Protobuf messages as JSON for scripts: names as in the .proto, every scalar field present, integers
// as numbers, bytes in hex. (protobuf's own JSON makes 64-bit integers strings and bytes base64.)
// Threads: pure functions.
#pragma once

#include <string>

#include "google/protobuf/message.h"

namespace kiln {

// Indented by two spaces, with a newline at the end.
std::string ToJson(const google::protobuf::Message& message);

std::string JsonString(const std::string& text);

}  // namespace kiln
