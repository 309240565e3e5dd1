// The memory that a step captured into a CUDA graph accesses, from its tensors.
#pragma once

#include "client/runtime/capture_dependencies.h"
#include "client/runtime/host.h"
#include "client/runtime/span.h"
#include "compiler/graph/dtypes.h"

namespace kiln::runtime {

inline MemoryRange RangeOf(const TensorMemory& tensor, bool written) {
  return {tensor.data, SpanElements(tensor.sizes, tensor.strides) * ByteSize(tensor.dtype), written};
}

// To be called before a library call writes memory that it made itself. False: it must not be written now.
inline bool WillWrite(const TensorMemory& tensor, const CallContext& context) {
  return context.order == nullptr || context.order->Touch(RangeOf(tensor, true)).ok();
}

}  // namespace kiln::runtime
