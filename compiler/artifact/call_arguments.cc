#include "compiler/artifact/call_arguments.h"

#include <algorithm>
#include <cstring>
#include <variant>

#include "absl/status/statusor.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

uint64_t Bits(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

class Writer {
 public:
  Writer(ExprWriter& exprs, absl::FunctionRef<absl::StatusOr<uint32_t>(ValueId)> buffer, v1::Argument* out)
      : exprs_(exprs), buffer_(buffer), out_(*out) {}

  absl::Status operator()(const NoneArg&) { return out_.mutable_as_none(), absl::OkStatus(); }
  absl::Status operator()(const TensorArg& arg) {
    if (arg.value == kNoValue) return out_.mutable_as_none(), absl::OkStatus();
    KILN_ASSIGN_OR_RETURN(uint32_t id, buffer_(arg.value));
    out_.set_as_tensor(id);
    return absl::OkStatus();
  }
  absl::Status operator()(const TensorListArg& arg) {
    bool optional = std::find(arg.values.begin(), arg.values.end(), kNoValue) != arg.values.end();
    if (!optional) out_.mutable_as_tensors();
    for (ValueId value : arg.values) {
      if (value == kNoValue) {
        out_.mutable_as_optional_tensors()->add_values(-1);
        continue;
      }
      KILN_ASSIGN_OR_RETURN(uint32_t id, buffer_(value));
      if (optional) {
        out_.mutable_as_optional_tensors()->add_values(id);
      } else {
        out_.mutable_as_tensors()->add_values(id);
      }
    }
    return absl::OkStatus();
  }
  absl::Status operator()(const IntArg& arg) {
    v1::SymInt value = exprs_.WriteInt(arg.value);
    if (value.kind_case() == v1::SymInt::kValue) {
      out_.set_as_int(value.value());
    } else {
      *out_.mutable_as_sym_int() = value;
    }
    return absl::OkStatus();
  }
  absl::Status operator()(const IntListArg& arg) {
    v1::Argument::SymInts values;
    bool symbolic = false;
    for (ExprId id : arg.values) {
      *values.add_values() = exprs_.WriteInt(id);
      symbolic = symbolic || values.values().rbegin()->kind_case() == v1::SymInt::kExpr;
    }
    if (symbolic) {
      *out_.mutable_as_sym_ints() = values;
      return absl::OkStatus();
    }
    v1::Argument::Ints* ints = out_.mutable_as_ints();
    for (const v1::SymInt& value : values.values()) ints->add_values(value.value());
    return absl::OkStatus();
  }
  absl::Status operator()(const FloatArg& arg) {
    return out_.set_as_float(Bits(arg.value)), absl::OkStatus();
  }
  absl::Status operator()(const FloatListArg& arg) {
    v1::Argument::Floats* floats = out_.mutable_as_floats();
    for (double value : arg.values) floats->add_bits(Bits(value));
    return absl::OkStatus();
  }
  absl::Status operator()(const BoolArg& arg) { return out_.set_as_bool(arg.value), absl::OkStatus(); }
  absl::Status operator()(const BoolListArg& arg) {
    v1::Argument::Bools* bools = out_.mutable_as_bools();
    for (bool value : arg.values) bools->add_values(value);
    return absl::OkStatus();
  }
  absl::Status operator()(const StringArg& arg) { return out_.set_as_string(arg.value), absl::OkStatus(); }
  absl::Status operator()(const DTypeArg& arg) {
    return out_.set_as_scalar_type(arg.value), absl::OkStatus();
  }
  absl::Status operator()(const MemoryFormatArg& arg) {
    return out_.set_as_memory_format(arg.value), absl::OkStatus();
  }
  absl::Status operator()(const LayoutArg& arg) { return out_.set_as_layout(arg.value), absl::OkStatus(); }
  absl::Status operator()(const DeviceArg& arg) {
    out_.mutable_as_device()->set_type(arg.value);
    return absl::OkStatus();
  }

 private:
  ExprWriter& exprs_;
  absl::FunctionRef<absl::StatusOr<uint32_t>(ValueId)> buffer_;
  v1::Argument& out_;
};

}  // namespace

absl::Status WriteArgument(const Argument& argument, ExprWriter& exprs,
                           absl::FunctionRef<absl::StatusOr<uint32_t>(ValueId)> buffer, v1::Argument* out) {
  return std::visit(Writer(exprs, buffer, out), argument);
}

}  // namespace kiln
