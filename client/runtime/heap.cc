#include "client/runtime/heap.h"

#include <cstddef>
#include <cstdlib>

#include "compiler/support/glibc.h"

namespace kiln::runtime {
namespace {

constexpr size_t kOfMalloc = size_t{64} << 10;  // room for its header and a page's rest

}  // namespace

void KeepFreedMemory() {
  static const bool done = [] {
    void* volatile block = std::malloc(kMappedBytesMin - kOfMalloc);  // volatile: the pair is not left out
    std::free(block);
    return true;
  }();
  (void)done;
}

}  // namespace kiln::runtime
