// Bytes that many replies share, given to gRPC without a copy. Threads: pure functions.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace kiln {

// The bytes belong to what `owner` owns, which lives until the last reader is done.
template <typename Owner>
grpc::Slice SharedSlice(const char* data, size_t size, std::shared_ptr<Owner> owner) {
  auto* kept = new std::shared_ptr<Owner>(std::move(owner));
  return grpc::Slice(
      const_cast<char*>(data), size, [](void* what) { delete static_cast<std::shared_ptr<Owner>*>(what); },
      kept);
}

template <typename Owner>
grpc::ByteBuffer SharedBytes(const std::string& bytes, std::shared_ptr<Owner> owner) {
  const grpc::Slice slice = SharedSlice(bytes.data(), bytes.size(), std::move(owner));
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace kiln
