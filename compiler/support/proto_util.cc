#include "compiler/support/proto_util.h"

#include <climits>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

namespace kiln {

std::string SerializeDeterministic(const google::protobuf::MessageLite& message) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    message.SerializePartialToCodedStream(&coded);
  }
  return bytes;
}

absl::Status ParseProto(absl::string_view bytes, absl::string_view what,
                        google::protobuf::MessageLite* message) {
  if (bytes.size() > INT_MAX || !message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": not a valid message"));
  }
  return absl::OkStatus();
}

}  // namespace kiln
