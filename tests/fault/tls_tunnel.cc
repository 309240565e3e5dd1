#include "tests/fault/tls_tunnel.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

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

bool SendAll(int descriptor, const char* bytes, size_t size) {
  while (size > 0) {
    const ssize_t sent = send(descriptor, bytes, size, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
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

// To the end of either side.
void TlsTunnel::Pump(Session& session) {
  char block[16384];
  while (true) {
    pollfd waits[] = {{session.wire, POLLIN, 0}, {session.ends[1], POLLIN, 0}};
    if (SSL_pending(session.ssl) == 0 && poll(waits, 2, -1) < 0) break;
    if (SSL_pending(session.ssl) > 0 || waits[0].revents != 0) {
      const int got = SSL_read(session.ssl, block, sizeof(block));
      if (got <= 0 && SSL_get_error(session.ssl, got) == SSL_ERROR_WANT_READ) continue;
      if (got <= 0 || !SendAll(session.ends[1], block, static_cast<size_t>(got))) break;
    } else if (waits[1].revents != 0) {
      const ssize_t got = recv(session.ends[1], block, sizeof(block), 0);
      if (got <= 0 || SSL_write(session.ssl, block, static_cast<int>(got)) <= 0) break;
    }
  }
  shutdown(session.wire, SHUT_RDWR);
  shutdown(session.ends[1], SHUT_RDWR);
}

}  // namespace kiln
