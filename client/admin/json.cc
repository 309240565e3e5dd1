#include "client/admin/json.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "compiler/support/digest.h"

namespace kiln {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

std::string Indent(int depth) { return std::string(2 * depth, ' '); }

std::string Number(double value) { return std::isfinite(value) ? absl::StrFormat("%.17g", value) : "null"; }

std::string WriteMessage(const Message& message, int depth);

// `index` < 0: a singular field.
std::string WriteValue(const Message& message, const FieldDescriptor* field, int index, int depth) {
  const Reflection* reflection = message.GetReflection();
  const bool repeated = index >= 0;
  switch (field->cpp_type()) {
#define KILN_JSON_INTEGER(CPPTYPE, Name)                                                \
  case FieldDescriptor::CPPTYPE:                                                        \
    return absl::StrCat(repeated ? reflection->GetRepeated##Name(message, field, index) \
                                 : reflection->Get##Name(message, field))
    KILN_JSON_INTEGER(CPPTYPE_INT32, Int32);
    KILN_JSON_INTEGER(CPPTYPE_INT64, Int64);
    KILN_JSON_INTEGER(CPPTYPE_UINT32, UInt32);
    KILN_JSON_INTEGER(CPPTYPE_UINT64, UInt64);
#undef KILN_JSON_INTEGER
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Number(repeated ? reflection->GetRepeatedDouble(message, field, index)
                             : reflection->GetDouble(message, field));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Number(repeated ? reflection->GetRepeatedFloat(message, field, index)
                             : reflection->GetFloat(message, field));
    case FieldDescriptor::CPPTYPE_BOOL: {
      const bool value =
          repeated ? reflection->GetRepeatedBool(message, field, index) : reflection->GetBool(message, field);
      return value ? "true" : "false";
    }
    case FieldDescriptor::CPPTYPE_ENUM: {
      const int value = repeated ? reflection->GetRepeatedEnumValue(message, field, index)
                                 : reflection->GetEnumValue(message, field);
      const auto* known = field->enum_type()->FindValueByNumber(value);
      return known == nullptr ? absl::StrCat(value) : JsonString(known->name());
    }
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string value = repeated ? reflection->GetRepeatedString(message, field, index)
                                         : reflection->GetString(message, field);
      return field->type() == FieldDescriptor::TYPE_BYTES ? JsonString(ToHex(value)) : JsonString(value);
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return WriteMessage(repeated ? reflection->GetRepeatedMessage(message, field, index)
                                   : reflection->GetMessage(message, field),
                          depth);
  }
  return "null";
}

std::string WriteMessage(const Message& message, int depth) {
  const Reflection* reflection = message.GetReflection();
  std::vector<std::string> members;
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    std::string value;
    if (field->is_repeated()) {
      std::vector<std::string> elements;
      for (int k = 0; k < reflection->FieldSize(message, field); ++k) {
        elements.push_back(absl::StrCat(Indent(depth + 2), WriteValue(message, field, k, depth + 2)));
      }
      value = elements.empty()
                  ? "[]"
                  : absl::StrCat("[\n", absl::StrJoin(elements, ",\n"), "\n", Indent(depth + 1), "]");
    } else {
      if (field->has_presence() && !reflection->HasField(message, field)) continue;
      value = WriteValue(message, field, -1, depth + 1);
    }
    members.push_back(absl::StrCat(Indent(depth + 1), JsonString(field->name()), ": ", value));
  }
  if (members.empty()) return "{}";
  return absl::StrCat("{\n", absl::StrJoin(members, ",\n"), "\n", Indent(depth), "}");
}

}  // namespace

std::string JsonString(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\t': out += "\\t"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          absl::StrAppendFormat(&out, "\\u%04x", c);
        } else {
          out += c;
        }
    }
  }
  return out + "\"";
}

std::string ToJson(const Message& message) { return WriteMessage(message, 0) + "\n"; }

}  // namespace kiln
