// A TLS client by hand, for those who do by TLS what gRPC's clients never would: what is sent to descriptor()
// goes encrypted to a server, from an address of the loopback that the test chooses, so that there are
// several hosts.
//
// Threads: one owner, and one that pumps. Errors: null, where there is no handshake.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "tests/fault/certificates.h"

namespace kiln {

// A connected socket that blocks; `server`: "127.0.0.1:PORT", `host`: "127.0.0.2". -1 where it is refused.
int ConnectFrom(const std::string& host, const std::string& server);

class TlsTunnel {
 public:
  // The server's certificate is believed.
  static std::unique_ptr<TlsTunnel> Open(const std::string& host, const std::string& server,
                                         const CertificatePair& client);
  ~TlsTunnel();
  TlsTunnel(const TlsTunnel&) = delete;
  TlsTunnel& operator=(const TlsTunnel&) = delete;

  // The plain end, whose owner the caller becomes; it is closed when the server closes. Once.
  int TakeDescriptor();

 private:
  struct Session;
  explicit TlsTunnel(std::unique_ptr<Session> session);
  static void Pump(Session& session);

  std::unique_ptr<Session> session_;
  std::thread pump_;
};

}  // namespace kiln
