#include "client/runtime/heap.h"

#include <malloc.h>

#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace kiln::runtime {
namespace {

constexpr int kBlockMax = 32 << 20;  // larger ones are mapped and unmapped, each for itself
constexpr int kKeptMax = 64 << 20;

bool SetByUser() {
  for (const char* name :
       {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  const char* tunables = std::getenv("GLIBC_TUNABLES");
  return tunables != nullptr && std::strstr(tunables, "glibc.malloc.") != nullptr;
}

}  // namespace

bool KeepFreedMemory() {
  static const bool raised = [] {
    if (SetByUser()) return false;
    const bool blocks = mallopt(M_MMAP_THRESHOLD, kBlockMax) == 1;
    return mallopt(M_TRIM_THRESHOLD, kKeptMax) == 1 && blocks;
  }();
  return raised;
}

}  // namespace kiln::runtime
