// Memory that one library call on a GPU may overwrite.
//
// A little of it is kept in the call's context for the next library call: they follow each other on one
// stream, or take turns where a graph is recorded. More is given back to the stream's memory when the object
// ends; what comes next runs after this call. Threads: one. The host outlives it.
#pragma once

#include <cstddef>

#include "client/runtime/host.h"

namespace kiln::runtime {

class Scratch {
 public:
  Scratch(Host& host, CallContext& context) : host_(host), context_(context) {}
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void* Of(size_t bytes);  // nullptr when there is none

 private:
  Tensor Make(size_t bytes);
  void* DataOf(Tensor tensor);
  void* OfItsOwn(size_t bytes);
  void* OfKept(size_t bytes);

  Host& host_;
  CallContext& context_;
  Tensor own_ = nullptr;
};

}  // namespace kiln::runtime
