// Bytes that many replies share, given to gRPC without a copy. Threads: pure functions.
#pragma once

#include <memory>
#include <string>

#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace kiln {

// `bytes` lies in what `owner` owns, which lives until the last reader is done.
template <typename Owner>
grpc::ByteBuffer SharedBytes(const std::string& bytes, std::shared_ptr<Owner> owner) {
  auto* kept = new std::shared_ptr<Owner>(std::move(owner));
  const grpc::Slice slice(
      const_cast<char*>(bytes.data()), bytes.size(),
      [](void* what) { delete static_cast<std::shared_ptr<Owner>*>(what); }, kept);
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace kiln
