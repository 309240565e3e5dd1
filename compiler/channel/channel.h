// The way to a kilnd: a unix socket, loopback TCP, or mutual TLS to any host.
//
// Files are read again for each connection, so that new certificates are used without a restart. By TCP a
// peer that is gone is found within 15 seconds of a call.
//
// Threads: pure functions.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "compiler/support/monotonic_time.h"
#include "compiler/support/tls_files.h"
#include "grpcpp/grpcpp.h"

namespace kiln {

// What people set the three by: KILN_TLS_CERT, KILN_TLS_KEY, KILN_TLS_CA.
const TlsFiles& TlsVariables();

// `address` as NormalAddress gives it. By a unix socket there is no TLS, whatever is named. INVALID_ARGUMENT,
// which says what to name, where another host is to be reached without, or one or two of the three are
// missing.
absl::Status CheckTls(absl::string_view address, const TlsFiles& files, const TlsFiles& names);

// Whether a peer that has frozen is found out by pings: by TCP it always is. A daemon on the same host that
// is only busy, as its caller's machine is, is not to be taken for one.
enum class KeepAlive { kByTcp, kAlways };

// Not connected yet. INVALID_ARGUMENT as above; FAILED_PRECONDITION, which names the file, where one is not
// good.
absl::StatusOr<std::shared_ptr<grpc::Channel>> NewChannel(const std::string& address, const TlsFiles& files,
                                                          const TlsFiles& names, int message_bytes_max,
                                                          KeepAlive keep_alive = KeepAlive::kByTcp);

// `channel` is NewChannel's of the same address and files. UNAVAILABLE, with the reason, where nobody answers
// in time. UNAUTHENTICATED, before it, where one side does not believe the other's certificate as far as
// gRPC's words tell: it says so, or each try by TLS ends at once.
absl::Status Connect(const std::shared_ptr<grpc::Channel>& channel, const std::string& address,
                     const TlsFiles& files, MonotonicTime deadline);

// Why the last connection failed, in gRPC's words; empty where there is one.
std::string WhyNotConnected(const std::shared_ptr<grpc::Channel>& channel);

// A gRPC deadline on the monotonic clock: setting the wall clock does not move it.
gpr_timespec GrpcDeadline(MonotonicTime deadline);

}  // namespace kiln
