// Runs kernels of AArch64 under an emulator, for tests on another machine: reads requests of emulated_frame.h
// until its input ends. Linked statically. Ends with 1 for a request that is none
// and where memory is short.
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "tests/conformance/emulated_frame.h"

namespace kiln::testing {
namespace {

constexpr size_t kAlignment = 64;

// false at the end of the input, where it may end.
bool Read(void* to, size_t bytes, bool may_end = false) {
  auto* at = static_cast<char*>(to);
  for (size_t done = 0; done < bytes;) {
    const ssize_t count = read(STDIN_FILENO, at + done, bytes - done);
    if (count == 0 && done == 0 && may_end) return false;
    if (count <= 0) exit(1);
    done += static_cast<size_t>(count);
  }
  return true;
}

void Write(const void* from, size_t bytes) {
  const auto* at = static_cast<const char*>(from);
  for (size_t done = 0; done < bytes;) {
    const ssize_t count = write(STDOUT_FILENO, at + done, bytes - done);
    if (count <= 0) exit(1);
    done += static_cast<size_t>(count);
  }
}

template <typename T>
std::vector<T> ReadMany(size_t count) {
  std::vector<T> all(count);
  Read(all.data(), count * sizeof(T));
  return all;
}

struct Code {
  void* base = nullptr;
  size_t bytes = 0;

  void Load(uint64_t image_bytes, uint64_t place) {
    if (base != nullptr) munmap(base, bytes);
    bytes = image_bytes + place;
    base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) exit(1);
    auto* image = static_cast<char*>(base) + place;
    Read(image, image_bytes);
    __builtin___clear_cache(image, image + image_bytes);
    if (mprotect(base, bytes, PROT_READ | PROT_EXEC) != 0) exit(1);
  }
};

void Answer(const EmulatedRequest& request, Code* code) {
  const auto symbols = ReadMany<int64_t>(request.symbols);
  const auto pieces = ReadMany<EmulatedPiece>(request.pieces);
  const auto buffers = ReadMany<EmulatedBuffer>(request.buffers);
  if (request.image_bytes > 0) code->Load(request.image_bytes, request.image_place);
  if (code->base == nullptr) exit(1);
  std::vector<void*> pointers;
  for (const EmulatedBuffer& buffer : buffers) {
    void* memory =
        aligned_alloc(kAlignment, (buffer.place + buffer.bytes) / kAlignment * kAlignment + kAlignment);
    if (memory == nullptr) exit(1);
    pointers.push_back(static_cast<char*>(memory) + buffer.place);
    Read(pointers.back(), buffer.bytes);
  }
  EmulatedReply reply = {};
  const KilnArgs args = {sizeof(KilnArgs), request.buffers, pointers.data(), symbols.data(), &reply.status};
  const auto kernel = reinterpret_cast<KilnKernel>(static_cast<char*>(code->base) + request.image_place +
                                                   request.entry_offset);
  for (const EmulatedPiece& piece : pieces) {
    reply.code = kernel(&args, piece.begin, piece.end, 0);
    if (reply.code != 0) break;
  }
  Write(&reply, sizeof(reply));
  for (uint32_t k = 0; k < request.buffers; ++k) {
    Write(pointers[k], buffers[k].bytes);
    free(static_cast<char*>(pointers[k]) - buffers[k].place);
  }
}

}  // namespace
}  // namespace kiln::testing

int main() {
  const rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  kiln::testing::EmulatedRequest request;
  kiln::testing::Code code;
  while (kiln::testing::Read(&request, sizeof(request), /*may_end=*/true)) {
    kiln::testing::Answer(request, &code);
  }
  return 0;
}
