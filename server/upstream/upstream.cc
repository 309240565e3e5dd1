#include "server/upstream/upstream.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/blocking_counter.h"
#include "compiler/channel/channel.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/protocol.h"
#include "compiler/support/status_macros.h"
#include "openssl/rand.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

constexpr size_t kIdBytes = 8;
constexpr absl::Duration kFetchLimit = absl::Seconds(10);
constexpr uint64_t kFetchBytesPerSecond = 1'000'000;
constexpr absl::Duration kFilesPause = absl::Seconds(10);  // between two looks at the files
constexpr absl::Duration kConnectPauseMin = absl::Milliseconds(100);
constexpr absl::Duration kConnectPauseMax = absl::Seconds(5);

const TlsFiles& TlsNames() {
  static const auto* names =
      new TlsFiles{"upstream.tls.certificate", "upstream.tls.key", "upstream.tls.authority"};
  return *names;
}

std::string NewId() {
  std::string id(kIdBytes, '\0');
  RAND_bytes(reinterpret_cast<unsigned char*>(id.data()), static_cast<int>(id.size()));
  return absl::BytesToHexString(id);
}

v1::HelloRequest OurHello() {
  v1::HelloRequest request;
  request.set_protocol_min(kSigningProtocol);
  request.set_protocol_max(kProtocol.max);
  request.set_client("kilnd");
  return request;
}

}  // namespace

// One that blocks, and ends early where the upstream is closed.
class Upstream::Call {
 public:
  Call(Upstream* upstream, const UpstreamCaller& caller, MonotonicTime deadline) : upstream_(upstream) {
    upstream_->Prepare(caller, deadline, &context_);
    absl::MutexLock lock(&upstream_->mutex_);
    upstream_->calls_.insert(this);
    if (upstream_->closed_) context_.TryCancel();
  }
  ~Call() {
    absl::MutexLock lock(&upstream_->mutex_);
    upstream_->calls_.erase(this);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  grpc::ClientContext* context() { return &context_; }

 private:
  Upstream* const upstream_;
  grpc::ClientContext context_;
};

Upstream::Upstream(Options options)
    : options_(std::move(options)),
      id_(NewId()),
      usable_(absl::UnavailableError("it has not been reached yet")) {}

absl::StatusOr<std::unique_ptr<Upstream>> Upstream::Create(Options options) {
  std::unique_ptr<Upstream> upstream(new Upstream(std::move(options)));
  {
    // What can never be is refused now.
    KILN_ASSIGN_OR_RETURN(LinkPtr link, upstream->NewLink());
    absl::MutexLock lock(&upstream->mutex_);
    upstream->link_ = std::move(link);
  }
  upstream->Connect();  // so that what is asked first finds it
  try {
    upstream->keeper_ = std::thread([made = upstream.get()] { made->Keep(); });
  } catch (const std::system_error& error) {
    return absl::UnavailableError(absl::StrCat("a thread for the upstream: ", error.what()));
  }
  return upstream;
}

Upstream::~Upstream() {
  Close();
  if (keeper_.joinable()) keeper_.join();
}

void Upstream::Close() {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
  for (Call* call : calls_) call->context()->TryCancel();
  changed_.SignalAll();
}

// ---- What is known of it ---------------------------------------------------------------------

std::vector<std::string> Upstream::Forwarders() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> all = {id_};
  if (hello_.has_value()) all.insert(all.end(), hello_->forwarders().begin(), hello_->forwarders().end());
  return all;
}

std::string Upstream::fingerprint() const {
  absl::MutexLock lock(&mutex_);
  return hello_.has_value() ? hello_->compiler_fingerprint() : "";
}

std::optional<v1::HelloReply> Upstream::Hello() const {
  absl::MutexLock lock(&mutex_);
  return hello_;
}

absl::Status Upstream::Usable() const {
  absl::MutexLock lock(&mutex_);
  return usable_;
}

v1::UpstreamStatus Upstream::status() const {
  v1::UpstreamStatus status;
  status.set_address(options_.address);
  status.set_hits(counts_.hits);
  status.set_misses(counts_.misses);
  status.set_forwarded(counts_.forwarded);
  status.set_refused(counts_.refused);
  status.set_away(counts_.away);
  status.set_fetched_objects(counts_.fetched_objects);
  absl::MutexLock lock(&mutex_);
  status.set_connected(usable_.ok());
  status.set_message(usable_.ok() ? last_failure_ : std::string(usable_.message()));
  if (hello_.has_value()) status.set_fingerprint(hello_->compiler_fingerprint());
  return status;
}

// The tenant is a caller's; empty: of none in particular.
absl::Status Upstream::CheckHello(const std::string& ns, const v1::HelloReply& hello) const {
  if (hello.program_format() != kProgramFormatVersion || hello.graph_format() != kGraphFormatVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("it has formats ", hello.graph_format(), " (graphs) and ", hello.program_format(),
                     " (programs), this kilnd ", kGraphFormatVersion, " and ", kProgramFormatVersion,
                     ": both have to be of builds with the same"));
  }
  const auto& forwarders = hello.forwarders();
  if (std::count(forwarders.begin(), forwarders.end(), id_) > 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "it passes on to this kilnd what this one passes on to it (", absl::StrJoin(forwarders, ", "), ")"));
  }
  if (!ns.empty() && !hello.tenant().empty() && hello.tenant() != ns) {
    return absl::PermissionDeniedError(
        absl::StrCat("it knows this kilnd as tenant \"", hello.tenant(), "\", and the program is \"", ns,
                     "\"'s: give listen.tenants the same name, or upstream.names_tenants"));
  }
  return absl::OkStatus();
}

void Upstream::Learn(const v1::HelloReply& hello) {
  absl::MutexLock lock(&mutex_);
  hello_ = hello;
}

// ---- The connection --------------------------------------------------------------------------

absl::StatusOr<Upstream::LinkPtr> Upstream::NewLink() const {
  auto link = std::make_shared<Link>();
  if (!options_.tls.certificate.empty()) {
    KILN_ASSIGN_OR_RETURN(link->pems, ReadTlsPems(options_.tls, TlsNames()));
  }
  KILN_ASSIGN_OR_RETURN(link->channel, NewChannel(options_.address, options_.tls, TlsNames(), kReplyBytesMax,
                                                  KeepAlive::kAlways));
  link->stub = v1::Compiler::NewStub(link->channel);
  return link;
}

Upstream::LinkPtr Upstream::link() const {
  absl::MutexLock lock(&mutex_);
  return link_;
}

// By a new connection: one that failed waits longer and longer before it tries again.
void Upstream::Connect() {
  v1::HelloReply hello;
  absl::StatusOr<LinkPtr> made = NewLink();
  absl::Status status = made.status();
  if (status.ok()) {
    Call call(this, {}, MonotonicAfter(options_.lookup_limit));
    status = FromGrpc((*made)->stub->Hello(call.context(), OurHello(), &hello));
  }
  if (status.ok()) Learn(hello);
  if (status.ok()) status = CheckHello("", hello);
  absl::MutexLock lock(&mutex_);
  if (closed_) return;
  if (made.ok()) link_ = *made;
  if (status.ok() && !usable_.ok()) spdlog::info("upstream {} answers", options_.address);
  if (!status.ok() && usable_.message() != status.message())
    spdlog::warn("upstream {}: {}", options_.address, status.ToString());
  usable_ = status;
}

// Calls keep the connection that they have.
void Upstream::RenewFiles() {
  if (options_.tls.certificate.empty()) return;
  const absl::StatusOr<TlsPems> pems = ReadTlsPems(options_.tls, TlsNames());
  if (!pems.ok() || *pems == link()->pems) return;
  absl::StatusOr<LinkPtr> made = NewLink();
  if (!made.ok()) return;  // half a pair, which will be whole soon
  absl::MutexLock lock(&mutex_);
  link_ = *std::move(made);
}

bool Upstream::Await(absl::Duration pause, std::optional<bool> usable) {
  absl::MutexLock lock(&mutex_);
  const MonotonicTime end = MonotonicAfter(pause);
  while (!closed_ && usable_.ok() == usable.value_or(usable_.ok()) && MonotonicNow() < end)
    changed_.WaitUntil(&mutex_, end);
  return !closed_;
}

void Upstream::Keep() {
  absl::Duration pause = kConnectPauseMin;
  for (bool usable = Usable().ok(); Await(usable ? kFilesPause : pause, usable); usable = Usable().ok()) {
    if (Usable().ok()) {
      RenewFiles();
      continue;
    }
    Connect();
    pause = Usable().ok() ? kConnectPauseMin : std::min(2 * pause, kConnectPauseMax);
  }
}

void Upstream::TakeFailure(const absl::Status& why) {
  counts_.away++;
  absl::MutexLock lock(&mutex_);
  last_failure_ = std::string(why.message());
  if (!usable_.ok() || (!absl::IsUnavailable(why) && !absl::IsDeadlineExceeded(why))) return;
  spdlog::warn("upstream {}: {}", options_.address, why.ToString());
  usable_ = why;
  changed_.SignalAll();
}

// ---- What it is asked ------------------------------------------------------------------------

void Upstream::Prepare(const UpstreamCaller& caller, MonotonicTime deadline,
                       grpc::ClientContext* context) const {
  if (deadline != MonotonicTime::max()) context->set_deadline(GrpcDeadline(deadline));
  context->AddMetadata(kProtocolMetadata, ToText(kProtocol));
  if (options_.names_tenants && !caller.ns.empty()) context->AddMetadata(kOnBehalfOfMetadata, caller.ns);
  std::vector<std::string> hops = caller.hops;
  hops.push_back(id_);
  context->AddMetadata(kHopsMetadata, absl::StrJoin(hops, ","));
}

absl::StatusOr<Upstream::Answer> Upstream::LookUp(const UpstreamCaller& caller,
                                                  const std::string& request_key, const v1::Hints& hints,
                                                  const v1::Gang& gang) {
  KILN_RETURN_IF_ERROR(Usable());
  const LinkPtr link = this->link();
  const MonotonicTime deadline = MonotonicAfter(options_.lookup_limit);
  Call hello_call(this, caller, deadline), call(this, caller, deadline);
  const v1::HelloRequest hello_request = OurHello();
  v1::HelloReply hello;
  v1::LookupRequest request;
  request.set_namespace_(caller.ns);
  request.set_request_key(request_key);
  *request.mutable_hints() = hints;
  request.set_job(caller.job);
  if (!gang.id().empty()) *request.mutable_gang() = gang;
  Answer answer;
  absl::Status said, looked;
  absl::BlockingCounter both(2);
  link->stub->async()->Hello(hello_call.context(), &hello_request, &hello, [&](grpc::Status status) {
    said = FromGrpc(status);
    both.DecrementCount();
  });
  link->stub->async()->Lookup(call.context(), &request, &answer.reply, [&](grpc::Status status) {
    looked = FromGrpc(status);
    both.DecrementCount();
  });
  both.Wait();  // the deadline's
  KILN_RETURN_IF_ERROR(said);
  Learn(hello);
  KILN_RETURN_IF_ERROR(CheckHello(caller.ns, hello));
  KILN_RETURN_IF_ERROR(looked);
  answer.fingerprint = hello.compiler_fingerprint();
  return answer;
}

absl::StatusOr<Upstream::Objects> Upstream::Fetch(const UpstreamCaller& caller, const v1::Manifest& manifest,
                                                  absl::Span<const v1::ObjectRef> objects) {
  MissingObjects missing;
  uint64_t bytes = 0;
  for (const v1::ObjectRef& object : objects) {
    if (missing.emplace(object.digest(), &object).second) bytes += object.packed_size();
  }
  Objects fetched;
  const MonotonicTime deadline = MonotonicAfter(kFetchLimit + absl::Seconds(bytes / kFetchBytesPerSecond));
  while (!missing.empty()) {
    std::optional<absl::Duration> come_again;
    const absl::Status status = FetchMissing(caller, manifest, deadline, &missing, &fetched, &come_again);
    if (status.ok()) break;
    // It has no room for as many as are taken from it now: for the rest again, while there is time.
    if (!come_again.has_value() || MonotonicAfter(*come_again) >= deadline || !Await(*come_again))
      return status;
  }
  if (!missing.empty()) return absl::NotFoundError("it did not send every object");
  counts_.fetched_objects += fetched.size();
  return fetched;
}

absl::Status Upstream::FetchMissing(const UpstreamCaller& caller, const v1::Manifest& manifest,
                                    MonotonicTime deadline, MissingObjects* missing, Objects* fetched,
                                    std::optional<absl::Duration>* come_again) {
  v1::FetchObjectsRequest request;
  request.set_namespace_(caller.ns);
  request.set_compile_key(manifest.compile_key());
  request.set_variant_id(manifest.variant_id());
  for (const auto& [digest, object] : *missing) request.add_digests(digest);
  Call call(this, caller, deadline);
  const auto stream = link()->stub->FetchObjects(call.context(), request);
  const auto keep = [&](const v1::ObjectRef& object, std::string packed) {
    (*fetched)[object.digest()] = std::move(packed);
    return absl::OkStatus();
  };
  KILN_RETURN_IF_ERROR(ReadObjects(call.context(), *stream, missing, keep));
  const absl::Status ended = FromGrpc(stream->Finish());
  if (absl::IsResourceExhausted(ended)) *come_again = ComeAgainOf(*call.context());
  return ended;
}

std::shared_ptr<ForwardedCompile> Upstream::Compile(const UpstreamCaller& caller, MonotonicTime deadline,
                                                    v1::CompileHeader header,
                                                    std::shared_ptr<const std::string> packed,
                                                    ForwardedCompile::Listener listener) {
  header.set_namespace_(caller.ns);
  header.set_job(caller.job);
  return ForwardedCompile::Start(
      link()->stub, [&](grpc::ClientContext* context) { Prepare(caller, deadline, context); },
      std::move(header), std::move(packed), std::move(listener));
}

}  // namespace kiln
