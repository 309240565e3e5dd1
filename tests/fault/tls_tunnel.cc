#include "tests/fault/tls_tunnel.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace kiln {
namespace {

constexpr unsigned char kHttp2[] = {2, 'h', '2'};

// The context has its own hold on both.
bool UsePair(SSL_CTX* context, const CertificatePair& pair) {
  BIO* const text = BIO_new_mem_buf(pair.certificate.data(), -1);
  BIO* const key_text = BIO_new_mem_buf(pair.key.data(), -1);
  X509* const certificate = PEM_read_bio_X509(text, nullptr, nullptr, nullptr);
  EVP_PKEY* const key = PEM_read_bio_PrivateKey(key_text, nullptr, nullptr, nullptr);
  const bool used = certificate != nullptr && key != nullptr &&
                    SSL_CTX_use_certificate(context, certificate) == 1 &&
                    SSL_CTX_use_PrivateKey(context, key) == 1;
  X509_free(certificate);
  EVP_PKEY_free(key);
  BIO_free(text);
  BIO_free(key_text);
  return used;
}

}  // namespace

int ConnectFrom(const std::string& host, const std::string& server) {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in from{}, to{};
  from.sin_family = to.sin_family = AF_INET;
  inet_pton(AF_INET, host.c_str(), &from.sin_addr);
  const size_t colon = server.rfind(':');
  inet_pton(AF_INET, server.substr(0, colon).c_str(), &to.sin_addr);
  to.sin_port = htons(static_cast<uint16_t>(atoi(server.c_str() + colon + 1)));
  if (bind(descriptor, reinterpret_cast<const sockaddr*>(&from), sizeof(from)) == 0 &&
      connect(descriptor, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0)
    return descriptor;
  close(descriptor);
  return -1;
}

struct TlsTunnel::Session {
  SSL_CTX* context = nullptr;
  SSL* ssl = nullptr;
  int wire = -1;           // to the server
  int ends[2] = {-1, -1};  // the caller's, and the pump's

  ~Session() {
    SSL_free(ssl);
    SSL_CTX_free(context);
    for (const int descriptor : {wire, ends[0], ends[1]}) {
      if (descriptor >= 0) close(descriptor);
    }
  }
  bool Shake(const CertificatePair& client) {
    context = SSL_CTX_new(TLS_client_method());
    if (context == nullptr || !UsePair(context, client)) return false;
    ssl = SSL_new(context);
    if (ssl == nullptr) return false;
    SSL_clear_mode(ssl, SSL_MODE_AUTO_RETRY);  // a session's ticket is no reason to wait for more
    return SSL_set_alpn_protos(ssl, kHttp2, sizeof(kHttp2)) == 0 && SSL_set_fd(ssl, wire) == 1 &&
           SSL_connect(ssl) == 1;
  }
};

std::unique_ptr<TlsTunnel> TlsTunnel::Open(const std::string& host, const std::string& server,
                                           const CertificatePair& client) {
  signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to what may be closed
  auto session = std::make_unique<Session>();
  session->wire = ConnectFrom(host, server);
  const bool open = session->wire >= 0 && session->Shake(client) &&
                    socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, session->ends) == 0;
  ERR_clear_error();
  return open ? std::unique_ptr<TlsTunnel>(new TlsTunnel(std::move(session))) : nullptr;
}

TlsTunnel::TlsTunnel(std::unique_ptr<Session> session)
    : session_(std::move(session)), pump_([this] { Pump(*session_); }) {}

TlsTunnel::~TlsTunnel() {
  shutdown(session_->wire, SHUT_RDWR);
  shutdown(session_->ends[1], SHUT_RDWR);
  pump_.join();
}

int TlsTunnel::TakeDescriptor() { return std::exchange(session_->ends[0], -1); }

// To the end of either side. What the server sends waits here until the caller takes it, and the server is
// read while it does not read: who sends and does not receive must not hold up either direction.
void TlsTunnel::Pump(Session& session) {
  fcntl(session.wire, F_SETFL, O_NONBLOCK);
  SSL_set_mode(session.ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  char block[16384];
  std::string received, to_send;
  const auto is_over = [&](int result) {
    if (result > 0) return false;
    const int error = SSL_get_error(session.ssl, result);
    return error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE;
  };
  while (true) {
    const auto events = [](bool reads, bool writes) {
      return static_cast<short>((reads ? POLLIN : 0) | (writes ? POLLOUT : 0));
    };
    pollfd waits[] = {{session.wire, events(true, !to_send.empty()), 0},
                      {session.ends[1], events(to_send.empty(), !received.empty()), 0}};
    if (SSL_pending(session.ssl) == 0 && poll(waits, 2, -1) < 0) break;
    const int got = SSL_read(session.ssl, block, sizeof(block));
    if (is_over(got)) break;
    if (got > 0) received.append(block, static_cast<size_t>(got));
    if (!received.empty()) {
      const ssize_t taken =
          send(session.ends[1], received.data(), received.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (taken < 0 && errno != EAGAIN) break;
      received.erase(0, static_cast<size_t>(std::max<ssize_t>(taken, 0)));
    }
    if (to_send.empty()) {
      const ssize_t given = recv(session.ends[1], block, sizeof(block), MSG_DONTWAIT);
      if (given == 0 || (given < 0 && errno != EAGAIN)) break;
      to_send.assign(block, static_cast<size_t>(std::max<ssize_t>(given, 0)));
    }
    if (!to_send.empty()) {
      const int sent = SSL_write(session.ssl, to_send.data(), static_cast<int>(to_send.size()));
      if (is_over(sent)) break;
      to_send.erase(0, static_cast<size_t>(std::max(sent, 0)));
    }
  }
  ERR_clear_error();
  shutdown(session.wire, SHUT_RDWR);
  shutdown(session.ends[1], SHUT_RDWR);
}

}  // namespace kiln
