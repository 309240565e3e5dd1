// Calls of kiln.v1 as the bytes that travel: made without the generated stubs, and kept in files, so that
// what a client of another build says can be said to this one's daemon.
//
// A file is text: "call METHOD", then its "metadata NAME VALUE", then a "message HEX" each; "#" begins a
// comment. Threads: pure functions.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "grpcpp/grpcpp.h"

namespace kiln {

struct WireCall {
  std::string method;                           // "/kiln.v1.Compiler/Hello"
  std::map<std::string, std::string> metadata;  // the caller's own
  std::vector<std::string> messages;
};

struct WireReply {
  grpc::Status status;
  std::map<std::string, std::string> metadata;  // initial, the daemon's own
  std::map<std::string, std::string> trailer;
  std::vector<std::string> messages;
};

// Says all of `call` before it takes the answer; blocks until the call is over, a minute at most.
WireReply Say(const std::shared_ptr<grpc::Channel>& channel, const WireCall& call);

std::string BytesOf(const grpc::ByteBuffer& buffer);
grpc::ByteBuffer BufferOf(const std::string& bytes);
// Those whose names begin with "kiln-", or say when to come again.
std::map<std::string, std::string> OwnMetadata(
    const std::multimap<grpc::string_ref, grpc::string_ref>& metadata);

// Empty where there is no such file, or what it has is no recording.
std::vector<WireCall> ReadCalls(const std::string& path);
void WriteCalls(const std::string& path, const std::string& comment, const std::vector<WireCall>& calls);

}  // namespace kiln
