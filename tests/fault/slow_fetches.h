// Callers who hold objects of a kilnd on their way: their share of what it sends at a time is used up.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/fault/test_daemon.h"

namespace kiln {

// The least that a configuration may say: room for two of LargeProgram's objects of a namespace, not for
// three.
inline std::string LittleRoomForObjects() {
  return absl::StrCat("admission { objects_bytes_max: ", uint64_t{288} << 20, " }\n");
}
inline std::string LargeProgram(const std::string& name) {
  return absl::StrCat("object_kib 81920\nname ", name);
}

// Calls that fetch one object, whose client took the first chunk and no more.
class SlowFetches {
 public:
  explicit SlowFetches(TestDaemon& daemon) : daemon_(daemon) {}
  ~SlowFetches() { End(); }

  void Add(const v1::Manifest& manifest, int count) {
    v1::FetchObjectsRequest request;
    request.set_namespace_(manifest.namespace_());
    request.set_compile_key(manifest.compile_key());
    request.set_variant_id(manifest.variant_id());
    request.add_digests(manifest.kernels(0).object().digest());
    for (int i = 0; i < count; ++i) {
      contexts_.push_back(std::make_unique<grpc::ClientContext>());
      readers_.push_back(daemon_.compiler().FetchObjects(contexts_.back().get(), request));
      v1::ObjectChunk chunk;
      EXPECT_TRUE(readers_.back()->Read(&chunk)) << readers_.back()->Finish().error_message();
    }
  }
  void End() {
    for (const auto& context : contexts_) context->TryCancel();
    for (const auto& reader : readers_) reader->Finish();
    readers_.clear();
    contexts_.clear();
  }

 private:
  TestDaemon& daemon_;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts_;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::ObjectChunk>>> readers_;
};

}  // namespace kiln
