// Workspace of one library call on a GPU: memory without defined contents.
//
// A small workspace is kept in the CallContext and reused by later library calls: on one stream they run in
// order, and in a captured graph they rotate over several. A large one is allocated for this call and freed
// with the object, which is safe since later work on the stream runs after it. Threads: one. The host
// outlives it.
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

  void* Of(size_t bytes);  // nullptr where it can't be allocated

 private:
  Tensor Make(size_t bytes);
  void* DataOf(Tensor tensor);
  void* AllocateOwn(size_t bytes);  // freed with this object
  void* ReuseKept(size_t bytes);    // the context's, grown where it is too small

  Host& host_;
  CallContext& context_;
  Tensor own_ = nullptr;
};

}  // namespace kiln::runtime
