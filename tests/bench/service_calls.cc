#include "tests/bench/service_calls.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "compiler/support/compiler_limits.h"
#include "compiler/support/zstd.h"

namespace kiln {

PackedRequest Pack(v1::CompileHeader header, const std::string& graph) {
  header.set_graph_bytes(graph.size());
  return {std::move(header), ZstdCompress(graph)};
}

std::vector<std::unique_ptr<v1::Compiler::Stub>> OpenConnections(const std::string& socket, int count) {
  std::vector<std::unique_ptr<v1::Compiler::Stub>> stubs;
  for (int i = 0; i < count; ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(-1);
    auto channel = grpc::CreateCustomChannel("unix:" + socket, grpc::InsecureChannelCredentials(), arguments);
    channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(30));
    stubs.push_back(v1::Compiler::NewStub(channel));
  }
  return stubs;
}

BenchCall::BenchCall(v1::Compiler::Stub& stub, const PackedRequest& request, BenchClock::time_point deadline,
                     std::function<void(BenchCall*)> ended)
    : request_(request), ended_(std::move(ended)) {
  context_.set_deadline(std::chrono::system_clock::now() +
                        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - BenchClock::now()));
  *part_.mutable_header() = request_.header;
  stub.async()->Compile(&context_, this);
  StartWrite(&part_);
  StartRead(&event_);
  StartCall();
}

void BenchCall::OnWriteDone(bool ok) {
  if (ok && sent_ < request_.packed.size()) SendPart();
}

void BenchCall::SendPart() {
  part_.set_graph_chunk(request_.packed.substr(sent_, kChunkBytesMax));
  sent_ += part_.graph_chunk().size();
  if (sent_ < request_.packed.size()) {
    StartWrite(&part_);
  } else {
    StartWriteLast(&part_, grpc::WriteOptions());
  }
}

void BenchCall::OnReadDone(bool ok) {
  if (!ok) return;
  outcome_.queued = outcome_.queued || event_.has_queued();
  if (event_.done().has_manifest() && outcome_.manifest.empty()) {
    outcome_.manifest = event_.done().manifest().manifest();
    outcome_.at = BenchClock::now();
  }
  if (event_.has_failed()) outcome_.failure = event_.failed().reason();
  StartRead(&event_);
}

void BenchCall::OnDone(const grpc::Status& status) {
  outcome_.status = status;
  if (outcome_.manifest.empty()) outcome_.at = BenchClock::now();
  const auto& trailing = context_.GetServerTrailingMetadata();
  if (const auto found = trailing.find("grpc-retry-pushback-ms"); found != trailing.end()) {
    outcome_.pushback_seconds = atof(std::string(found->second.data(), found->second.size()).c_str()) / 1000;
  }
  ended_(this);
}

}  // namespace kiln
