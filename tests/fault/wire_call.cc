#include "tests/fault/wire_call.h"

#include <chrono>
#include <fstream>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "grpcpp/generic/generic_stub.h"

namespace kiln {

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& slice : slices)
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::map<std::string, std::string> OwnMetadata(
    const std::multimap<grpc::string_ref, grpc::string_ref>& metadata) {
  std::map<std::string, std::string> own;
  for (const auto& [name, value] : metadata) {
    const absl::string_view text(name.data(), name.size());
    if (absl::StartsWith(text, "kiln-") || text == "grpc-retry-pushback-ms")
      own.emplace(text, absl::string_view(value.data(), value.size()));
  }
  return own;
}

WireReply Say(const std::shared_ptr<grpc::Channel>& channel, const WireCall& call) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  context.set_wait_for_ready(true);
  for (const auto& [name, value] : call.metadata) context.AddMetadata(name, value);
  grpc::CompletionQueue queue;
  const auto stream = stub.PrepareCall(&context, call.method, &queue);
  // One operation at a time.
  const auto done = [&queue] {
    void* which = nullptr;
    bool ok = false;
    return queue.Next(&which, &ok) && ok;
  };
  stream->StartCall(&stub);
  bool open = done();
  for (const std::string& message : call.messages) {
    if (!open) break;
    stream->Write(BufferOf(message), &stub);
    open = done();
  }
  if (open) {
    stream->WritesDone(&stub);
    done();
  }
  WireReply reply;
  for (bool more = true; more;) {
    grpc::ByteBuffer buffer;
    stream->Read(&buffer, &stub);
    more = done();
    if (more) reply.messages.push_back(BytesOf(buffer));
  }
  stream->Finish(&reply.status, &stub);
  done();
  reply.metadata = OwnMetadata(context.GetServerInitialMetadata());
  reply.trailer = OwnMetadata(context.GetServerTrailingMetadata());
  return reply;
}

std::vector<WireCall> ReadCalls(const std::string& path) {
  std::vector<WireCall> calls;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (words[0] == "call" && words.size() == 2) {
      calls.push_back({words[1], {}, {}});
    } else if (words[0] == "metadata" && words.size() == 3 && !calls.empty()) {
      calls.back().metadata[words[1]] = words[2];
    } else if (words[0] == "message" && words.size() <= 2 && !calls.empty()) {
      calls.back().messages.push_back(absl::HexStringToBytes(words.size() == 2 ? words[1] : ""));
    } else {
      return {};
    }
  }
  return calls;
}

void WriteCalls(const std::string& path, const std::string& comment, const std::vector<WireCall>& calls) {
  std::ofstream file(path);
  file << "# " << comment << "\n";
  for (const WireCall& call : calls) {
    file << "call " << call.method << "\n";
    for (const auto& [name, value] : call.metadata) file << "metadata " << name << " " << value << "\n";
    for (const std::string& message : call.messages)
      file << "message" << (message.empty() ? "" : " ") << absl::BytesToHexString(message) << "\n";
  }
}

}  // namespace kiln
