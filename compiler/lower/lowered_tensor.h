// A tensor value during lowering: *strided* (a window on a buffer) or *virtual* (a body that gives the
// element at an index, not yet in memory). Cheap to copy; immutable bodies are shared.
// Threads: none shared.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "compiler/lower/loop_graph.h"

namespace kiln {

struct VirtualBody {
  std::vector<LoopOpData> ops;  // only what `result` needs; `result` is the last
  LoopOpId result = 0;          // in the compute type of the tensor's dtype
  std::vector<ExprId> vars;     // by dimension: a canonical variable, or 0 where the size is 1
  uint32_t loads = 0;
  bool heavy = false;             // a transcendental function or a random number: expensive to repeat
  bool divides = false;           // an index holds a floor-division or a modulo
  std::vector<uint32_t> origins;  // graph nodes, ascending
};

struct LoweredTensor {
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;  // unspecified: an undefined result
  v1::DeviceType device = v1::CPU;
  std::vector<ExprId> sizes;
  std::vector<ExprId> strides;  // as traced: the layout to prefer when it gets a buffer of its own
  std::optional<BufferView> view;
  std::shared_ptr<const VirtualBody> body;

  size_t rank() const { return sizes.size(); }
  bool is_strided() const { return view.has_value(); }
};

// The window as a tensor of `type`.
inline LoweredTensor WithView(const TensorType& type, BufferView view) {
  return {type.dtype, type.device, type.sizes, type.strides, std::move(view), nullptr};
}

}  // namespace kiln
