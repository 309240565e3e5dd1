// HTTP/2 by hand, for clients that do what gRPC's never would: a connection of a unix socket, and the bytes
// of frames. It sends what it is told and checks nothing.
//
// Threads: one at a time. Errors: false, where the other side is gone.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace kiln {

enum class Http2Type : uint8_t {
  kData = 0,
  kHeaders = 1,
  kReset = 3,
  kSettings = 4,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8,
};

inline constexpr uint8_t kHttp2EndStream = 1;
inline constexpr uint8_t kHttp2EndHeaders = 4;
inline constexpr uint8_t kHttp2Ack = 1;

struct Http2Frame {
  Http2Type type;
  uint8_t flags;
  uint32_t stream;
  std::string payload;
};

std::string Http2Bytes(Http2Type type, uint8_t flags, uint32_t stream, std::string_view payload);
// What a client begins with: the preface and settings that allow everything.
std::string Http2Hello();
// A call's headers; `more` is the value of one header beside gRPC's, where it is not empty.
std::string Http2Call(uint32_t stream, std::string_view path, std::string_view more = "");
std::string Http2Reset(uint32_t stream);
uint32_t Http2Number(std::string_view big_endian);  // of its first four bytes

class RawConnection {
 public:
  // Null where nobody listens.
  static std::unique_ptr<RawConnection> Open(const std::string& socket);
  // Takes a connected socket that blocks.
  static std::unique_ptr<RawConnection> Of(int descriptor);
  ~RawConnection();
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;

  int descriptor() const { return descriptor_; }
  // Waits as long as the other side takes.
  bool Send(std::string_view bytes);
  // Takes what has come and waits at most so long for more. False at the end of the connection.
  bool Receive(std::chrono::milliseconds limit);
  // The next frame of what was received; false where there is no whole one.
  bool Next(Http2Frame* frame);
  // Whether the other side closes it in time; throws away what comes before.
  bool ClosedWithin(std::chrono::milliseconds limit);

 private:
  explicit RawConnection(int descriptor) : descriptor_(descriptor) {}

  const int descriptor_;
  std::string received_;
  size_t taken_ = 0;  // of it
};

// Makes so many calls, each reset at once; false where the other side closes the connection first. Streams
// begin at `stream`.
bool SendResets(RawConnection& connection, uint32_t stream, std::string_view path, int calls);

// Begins a call and sends one message of so many bytes, as fast as the other side's windows allow, until it
// is sent, refused, or the deadline. Returns the bytes that went.
size_t SendLargeMessage(RawConnection& connection, uint32_t stream, std::string_view path, size_t bytes,
                        std::chrono::steady_clock::time_point deadline);

}  // namespace kiln
