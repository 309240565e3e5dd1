// Credentials of mutual TLS from the files that deploy/make_dev_certs.sh makes: ca.crt, and server or `name`,
// .crt and .key. A file that is not there is empty, and no connection stands then.
#pragma once

#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "grpcpp/grpcpp.h"

namespace kiln::bench {

inline std::string FileText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

inline std::shared_ptr<grpc::ServerCredentials> ServerTls(const std::string& directory) {
  grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = FileText(directory + "/ca.crt");
  options.pem_key_cert_pairs.push_back(
      {FileText(directory + "/server.key"), FileText(directory + "/server.crt")});
  return grpc::SslServerCredentials(options);
}

inline std::shared_ptr<grpc::ChannelCredentials> ClientTls(const std::string& directory,
                                                           const std::string& name) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = FileText(directory + "/ca.crt");
  options.pem_private_key = FileText(directory + "/" + name + ".key");
  options.pem_cert_chain = FileText(directory + "/" + name + ".crt");
  return grpc::SslCredentials(options);
}

}  // namespace kiln::bench
