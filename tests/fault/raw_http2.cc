#include "tests/fault/raw_http2.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <utility>

namespace kiln {
namespace {

constexpr size_t kFrameHead = 9;

std::string BigEndian(uint32_t value, int bytes) {
  std::string text;
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) text += static_cast<char>(value >> shift & 0xff);
  return text;
}

// HPACK's length: seven bits, and what is more in groups of seven.
std::string Length(size_t value) {
  if (value < 127) return std::string(1, static_cast<char>(value));
  std::string text = "\x7f";
  for (value -= 127; value >= 128; value /= 128) text += static_cast<char>(value % 128 | 128);
  return text + static_cast<char>(value);
}

// A header that goes into no table.
std::string Literal(std::string_view name, std::string_view value) {
  std::string text(1, '\0');
  return text.append(Length(name.size())).append(name).append(Length(value.size())).append(value);
}

}  // namespace

std::string Http2Bytes(Http2Type type, uint8_t flags, uint32_t stream, std::string_view payload) {
  std::string bytes = BigEndian(static_cast<uint32_t>(payload.size()), 3);
  bytes += static_cast<char>(type);
  bytes += static_cast<char>(flags);
  return bytes.append(BigEndian(stream, 4)).append(payload);
}

std::string Http2Hello() {
  constexpr uint32_t kInitialWindow = 4;
  const std::string window = BigEndian(kInitialWindow, 2).append(BigEndian(0x7fffffff, 4));
  return std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
      .append(Http2Bytes(Http2Type::kSettings, 0, 0, window));
}

std::string Http2Call(uint32_t stream, std::string_view path, std::string_view more) {
  std::string headers;
  for (const auto& [name, value] : std::initializer_list<std::pair<std::string_view, std::string_view>>{
           {":method", "POST"},
           {":scheme", "http"},
           {":path", path},
           {":authority", "localhost"},
           {"te", "trailers"},
           {"content-type", "application/grpc"},
           {"more", more}}) {
    if (!value.empty()) headers += Literal(name, value);
  }
  return Http2Bytes(Http2Type::kHeaders, kHttp2EndHeaders, stream, headers);
}

std::string Http2Reset(uint32_t stream) {
  constexpr uint32_t kCancel = 8;
  return Http2Bytes(Http2Type::kReset, 0, stream, BigEndian(kCancel, 4));
}

uint32_t Http2Number(std::string_view big_endian) {
  uint32_t value = 0;
  for (const char byte : big_endian.substr(0, 4)) value = value << 8 | static_cast<uint8_t>(byte);
  return value;
}

// What the other side lets a call send.
class Windows {
 public:
  explicit Windows(uint32_t stream) : stream_(stream) {}

  size_t open() const { return static_cast<size_t>(std::max<int64_t>(0, std::min(connection_, call_))); }
  void Used(size_t bytes) {
    connection_ -= static_cast<int64_t>(bytes);
    call_ -= static_cast<int64_t>(bytes);
  }
  // False where the call is over.
  bool Take(const Http2Frame& frame, RawConnection& connection) {
    if (frame.type == Http2Type::kSettings && (frame.flags & kHttp2Ack) == 0) {
      for (size_t at = 0; at + 6 <= frame.payload.size(); at += 6) {
        const std::string_view setting = std::string_view(frame.payload).substr(at);
        if (Http2Number(setting) >> 16 != kInitialWindow) continue;
        const int64_t initial = Http2Number(setting.substr(2));
        call_ += initial - std::exchange(initial_, initial);
      }
      return connection.Send(Http2Bytes(Http2Type::kSettings, kHttp2Ack, 0, ""));
    }
    if (frame.type == Http2Type::kPing && (frame.flags & kHttp2Ack) == 0) {
      return connection.Send(Http2Bytes(Http2Type::kPing, kHttp2Ack, 0, frame.payload));
    }
    if (frame.type == Http2Type::kWindowUpdate) {
      (frame.stream == 0 ? connection_ : call_) += Http2Number(frame.payload);
    }
    const bool ends = frame.type == Http2Type::kReset || (frame.flags & kHttp2EndStream) != 0;
    return frame.type != Http2Type::kGoAway && !(ends && frame.stream == stream_);
  }

 private:
  static constexpr uint32_t kInitialWindow = 4;
  const uint32_t stream_;
  int64_t initial_ = 65'535;
  int64_t connection_ = 65'535;
  int64_t call_ = 65'535;
};

std::unique_ptr<RawConnection> RawConnection::Open(const std::string& socket_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  strncpy(address.sun_path, socket_path.c_str(), sizeof(address.sun_path) - 1);
  const int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return nullptr;
  std::unique_ptr<RawConnection> connection(new RawConnection(descriptor));
  const bool open = connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  return open ? std::move(connection) : nullptr;
}

std::unique_ptr<RawConnection> RawConnection::Of(int descriptor) {
  return std::unique_ptr<RawConnection>(new RawConnection(descriptor));
}

RawConnection::~RawConnection() { close(descriptor_); }

bool RawConnection::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EINTR) return false;
    if (sent > 0) bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool RawConnection::Receive(std::chrono::milliseconds limit) {
  received_.erase(0, std::exchange(taken_, 0));
  char block[16384];
  pollfd wait = {descriptor_, POLLIN, 0};
  for (int milliseconds = static_cast<int>(limit.count());; milliseconds = 0) {
    if (poll(&wait, 1, milliseconds) <= 0) return true;
    const ssize_t got = recv(descriptor_, block, sizeof(block), 0);
    if (got == 0 || (got < 0 && errno != EINTR)) return false;
    if (got > 0) received_.append(block, static_cast<size_t>(got));
  }
}

bool RawConnection::Next(Http2Frame* frame) {
  const std::string_view left = std::string_view(received_).substr(taken_);
  if (left.size() < kFrameHead) return false;
  const size_t size = Http2Number(left) >> 8;
  if (left.size() < kFrameHead + size) return false;
  frame->type = static_cast<Http2Type>(left[3]);
  frame->flags = static_cast<uint8_t>(left[4]);
  frame->stream = Http2Number(left.substr(5)) & 0x7fffffff;
  frame->payload = left.substr(kFrameHead, size);
  taken_ += kFrameHead + size;
  return true;
}

bool RawConnection::ClosedWithin(std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (std::chrono::steady_clock::now() < deadline) {
    if (!Receive(std::chrono::milliseconds(50))) return true;
    received_.clear();
    taken_ = 0;
  }
  return false;
}

bool SendResets(RawConnection& connection, uint32_t stream, std::string_view path, int calls) {
  for (int call = 0; call < calls; ++call, stream += 2) {
    if (!connection.Send(Http2Call(stream, path) + Http2Reset(stream))) return false;
    if (call % 100 == 99 && !connection.Receive(std::chrono::milliseconds(0))) return false;
  }
  return true;
}

size_t SendLargeMessage(RawConnection& connection, uint32_t stream, std::string_view path, size_t bytes,
                        std::chrono::steady_clock::time_point deadline) {
  constexpr size_t kDataBytes = 16384;  // of one frame
  std::string head(1, '\0');            // gRPC's: not compressed, and the length
  head += BigEndian(static_cast<uint32_t>(bytes), 4);
  const std::string zeros(kDataBytes, '\0');
  Windows windows(stream);
  if (!connection.Send(Http2Call(stream, path))) return 0;
  size_t sent = 0;
  Http2Frame frame;
  while (sent < bytes && std::chrono::steady_clock::now() < deadline) {
    if (!connection.Receive(std::chrono::milliseconds(windows.open() <= head.size() ? 20 : 0))) return sent;
    while (connection.Next(&frame)) {
      if (!windows.Take(frame, connection)) return sent;
    }
    if (windows.open() <= head.size()) continue;
    const size_t part = std::min({kDataBytes, windows.open(), bytes - sent + head.size()}) - head.size();
    const std::string payload = head + zeros.substr(0, part);
    if (!connection.Send(Http2Bytes(Http2Type::kData, 0, stream, payload))) return sent;
    windows.Used(payload.size());
    head.clear();
    sent += part;
  }
  return sent;
}

}  // namespace kiln
