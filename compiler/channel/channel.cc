#include "compiler/channel/channel.h"

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "compiler/support/status_macros.h"
#include "kiln/v1/compile.grpc.pb.h"

namespace kiln {
namespace {

// kilnd takes a ping in 5 s (server/listen).
constexpr int kKeepAliveMilliseconds = 8'000;
constexpr int kKeepAliveAnswerMilliseconds = 5'000;

bool IsUnixSocket(absl::string_view address) { return absl::StartsWith(address, "unix:"); }

bool IsLoopback(absl::string_view address) {
  const absl::string_view host = address.substr(0, address.rfind(':'));
  return host == "localhost" || host == "[::1]" || host == "127.0.0.1";
}

bool IsByTls(absl::string_view address, const TlsFiles& files) {
  return !IsUnixSocket(address) && !files.certificate.empty();
}

std::string AllOf(const TlsFiles& names) {
  return absl::StrCat(names.authority, ", ", names.certificate, " and ", names.key);
}

// Two tries of gRPC's for a connection are at least this far apart.
constexpr absl::Duration kBetweenTries = absl::Milliseconds(1'500);

bool HasOneOf(absl::string_view why, std::initializer_list<absl::string_view> signs) {
  return std::any_of(signs.begin(), signs.end(),
                     [&](absl::string_view sign) { return absl::StrContains(why, sign); });
}

bool EndedByTls(absl::string_view why) { return HasOneOf(why, {"andshake", "peer certificate"}); }

// A connection that was made and then came to nothing. kilnd says no more to a caller whose certificate it
// does not take than to close it; and one that ends closes its connections, too.
bool EndedAtOnce(absl::string_view why) { return HasOneOf(why, {"Socket closed", "Connection reset"}); }

}  // namespace

const TlsFiles& TlsVariables() {
  static const auto* names = new TlsFiles{"KILN_TLS_CERT", "KILN_TLS_KEY", "KILN_TLS_CA"};
  return *names;
}

absl::Status CheckTls(absl::string_view address, const TlsFiles& files, const TlsFiles& names) {
  if (IsUnixSocket(address)) return absl::OkStatus();
  const std::string all = AllOf(names);
  std::vector<std::string> missing;
  if (files.authority.empty()) missing.push_back(names.authority);
  if (files.certificate.empty()) missing.push_back(names.certificate);
  if (files.key.empty()) missing.push_back(names.key);
  if (missing.empty()) return absl::OkStatus();
  if (missing.size() < 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("mutual TLS takes ", all, "; not set: ", absl::StrJoin(missing, ", ")));
  }
  if (IsLoopback(address)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(address, " is another host's, which is reached by mutual TLS alone: set ", all));
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> NewChannel(const std::string& address, const TlsFiles& files,
                                                          const TlsFiles& names, int message_bytes_max,
                                                          KeepAlive keep_alive) {
  KILN_RETURN_IF_ERROR(CheckTls(address, files, names));
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(message_bytes_max);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (!IsUnixSocket(address) || keep_alive == KeepAlive::kAlways) {
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepAliveMilliseconds);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepAliveAnswerMilliseconds);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // as many as it takes
  }
  if (IsByTls(address, files)) {
    KILN_ASSIGN_OR_RETURN(const TlsPems pems, ReadTlsPems(files, names));
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = pems.authority;
    options.pem_cert_chain = pems.certificate;
    options.pem_private_key = pems.key;
    credentials = grpc::SslCredentials(options);
  }
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

absl::Status Connect(const std::shared_ptr<grpc::Channel>& channel, const std::string& address,
                     const TlsFiles& files, MonotonicTime deadline) {
  const TlsFiles& names = TlsVariables();
  const bool by_tls = IsByTls(address, files);
  std::string why;
  MonotonicTime ended_since = MonotonicTime::max();
  while (true) {
    const grpc_connectivity_state state = channel->GetState(/*try_to_connect=*/true);
    if (state == GRPC_CHANNEL_READY) return absl::OkStatus();
    MonotonicTime look_again = deadline;
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE && !IsUnixSocket(address)) {
      why = WhyNotConnected(channel);
      const MonotonicTime now = MonotonicNow();
      ended_since = EndedAtOnce(why) ? std::min(ended_since, now) : MonotonicTime::max();
      const bool ends_each_time = ended_since <= now - absl::ToChronoNanoseconds(kBetweenTries);
      if (by_tls && (EndedByTls(why) || ends_each_time)) {
        return absl::UnauthenticatedError(absl::StrCat(
            "kilnd at ", address, " and this process do not take each other's certificates: ", why,
            ". Its certificate has to be of an authority in ", names.authority, " and of that host, and ",
            names.certificate, " valid now, for clients, and of an authority in its listen.tls.authority"));
      }
      // The state stays the same while gRPC tries again.
      look_again = std::min(deadline, MonotonicAfter(kBetweenTries / 3));
    }
    if (!channel->WaitForStateChange(state, GrpcDeadline(look_again)) && MonotonicNow() >= deadline) break;
  }
  std::string told = absl::StrCat("no kilnd answers at ", address);
  if (!why.empty()) absl::StrAppend(&told, ": ", why);
  if (!by_tls && ended_since != MonotonicTime::max()) {
    absl::StrAppend(&told, "; where it takes mutual TLS alone, set ", AllOf(names));
  }
  return absl::UnavailableError(told);
}

std::string WhyNotConnected(const std::shared_ptr<grpc::Channel>& channel) {
  const auto stub = v1::Compiler::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(GrpcDeadline(MonotonicAfter(absl::Seconds(1))));
  v1::HelloReply reply;
  const grpc::Status status = stub->Hello(&context, v1::HelloRequest(), &reply);
  return status.error_code() == grpc::UNAVAILABLE ? status.error_message() : "";
}

gpr_timespec GrpcDeadline(MonotonicTime deadline) {
  const int64_t left = absl::ToInt64Nanoseconds(absl::FromChrono(deadline - MonotonicNow()));
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(left, GPR_TIMESPAN));
}

}  // namespace kiln
