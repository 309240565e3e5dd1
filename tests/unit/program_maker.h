// Makes programs for tests of the runtime: F32 buffers on the CPU, library calls of one argument and one
// result. What makes a buffer gives its number. Threads: one.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "compiler/support/compiler_limits.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln::runtime {

class ProgramMaker {
 public:
  using Sizes = std::vector<int64_t>;

  ProgramMaker() { program_.set_format_version(kProgramFormatVersion); }

  // Strides are row-major where none are named.
  uint32_t Input(const Sizes& sizes, bool written = false) {
    v1::ProgramInput* input = program_.add_inputs();
    input->set_written(written);
    auto* tensor = input->mutable_tensor();
    const uint32_t buffer = Buffer(v1::ProgramBuffer::INPUT, sizes, RowMajor(sizes));
    const v1::ProgramBuffer& like = program_.buffers(buffer);
    tensor->set_dtype(like.dtype());
    *tensor->mutable_device() = like.device();
    *tensor->mutable_sizes() = like.sizes();
    *tensor->mutable_strides() = like.strides();
    program_.mutable_buffers(buffer)->set_input(program_.inputs_size() - 1);
    return buffer;
  }
  uint32_t Owned(const Sizes& sizes) { return Buffer(v1::ProgramBuffer::OWNED, sizes, RowMajor(sizes)); }
  uint32_t View(uint32_t base, const Sizes& sizes, const Sizes& strides, int64_t offset = 0) {
    const uint32_t buffer = Buffer(v1::ProgramBuffer::VIEW, sizes, strides);
    program_.mutable_buffers(buffer)->mutable_storage_offset()->set_value(offset);
    program_.mutable_buffers(buffer)->set_base(base);
    return buffer;
  }

  void Alloc(uint32_t buffer, int64_t reuse = -1) {
    v1::Step::Alloc* alloc = program_.add_steps()->mutable_alloc();
    alloc->set_buffer(buffer);
    alloc->set_reuse(reuse);
  }
  void Free(uint32_t buffer) { program_.add_steps()->mutable_free()->set_buffer(buffer); }
  // Gives `result`; `into` says whether it stands ready.
  uint32_t Call(const std::string& target, uint32_t self, uint32_t result, bool into) {
    v1::Call* call = program_.add_steps()->mutable_call();
    call->set_target(target);
    v1::NamedArgument* argument = call->add_args();
    argument->set_name("self");
    argument->mutable_value()->set_as_tensor(self);
    call->add_results(result);
    call->set_into_results(into);
    return result;
  }
  // `to` is allocated, and `from` copied into it.
  uint32_t Copy(uint32_t from, uint32_t to, int64_t reuse = -1) {
    Alloc(to, reuse);
    return Call("test.copy.default", from, to, true);
  }
  void Output(uint32_t buffer) { program_.add_outputs()->set_buffer(buffer); }

  v1::Program& program() { return program_; }
  v1::Manifest manifest() const {
    v1::Manifest manifest;
    *manifest.mutable_program() = program_;
    return manifest;
  }

 private:
  static Sizes RowMajor(const Sizes& sizes) {
    Sizes strides(sizes.size(), 1);
    for (size_t d = sizes.size() - 1; d > 0; --d) strides[d - 1] = strides[d] * sizes[d];
    return strides;
  }
  uint32_t Buffer(v1::ProgramBuffer::Kind kind, const Sizes& sizes, const Sizes& strides) {
    v1::ProgramBuffer* buffer = program_.add_buffers();
    buffer->set_kind(kind);
    buffer->set_dtype(v1::F32);
    buffer->mutable_device()->set_type(v1::CPU);
    for (const int64_t size : sizes) buffer->add_sizes()->set_value(size);
    for (const int64_t stride : strides) buffer->add_strides()->set_value(stride);
    return program_.buffers_size() - 1;
  }

  v1::Program program_;
};

}  // namespace kiln::runtime
