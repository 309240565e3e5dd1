#include "kiln/client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/client_limits.h"
#include "client/src/daemon.h"
#include "client/src/daemon_keys.h"
#include "client/src/forked_client.h"
#include "client/src/gang_client.h"
#include "client/src/kept_channel.h"
#include "client/src/object_cache.h"
#include "client/src/status_payloads.h"
#include "compiler/channel/channel.h"
#include "compiler/channel/object_stream.h"
#include "compiler/graph/caller_notes.h"
#include "compiler/support/breaker.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/digest.h"
#include "compiler/support/manifest_objects.h"
#include "compiler/support/monotonic_cond_var.h"
#include "compiler/support/monotonic_time.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/protocol.h"
#include "compiler/support/start_thread.h"
#include "compiler/support/status_macros.h"
#include "compiler/support/zstd.h"
#include "kiln/run_count.h"
#include "kiln/v1/compile.grpc.pb.h"

namespace kiln {
namespace {

constexpr size_t kObjectCacheBytes = 256u << 20;
constexpr int kFullAttempts = 4;  // of a daemon that does not say when to come again
constexpr auto kStorePatience = std::chrono::milliseconds(200);  // who has his program waits for its sync

absl::Status FromGrpc(const grpc::Status& status, absl::string_view what) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      absl::StrCat(what, ": ", status.error_message()));
}

// `Failed`: of a look-up or a compile.
template <typename Failed>
absl::Status FromFailure(const Failed& failed) {
  const bool known = failed.code() > 0 && failed.code() <= 16;
  absl::Status failure(known ? static_cast<absl::StatusCode>(failed.code()) : absl::StatusCode::kInternal,
                       failed.reason());
  failure.SetPayload(kAnswered, absl::Cord());
  if (failed.no_verdict()) failure.SetPayload(kWithoutVerdict, absl::Cord());
  return failure;
}

constexpr char kPushback[] = "kiln/pushback";  // when a full service wants to be asked again: milliseconds

// Keeps what a refusal says of when to come again.
absl::Status WithPushback(absl::Status status, const grpc::ClientContext& context) {
  if (!absl::IsResourceExhausted(status) && !absl::IsUnavailable(status)) return status;
  const auto& metadata = context.GetServerTrailingMetadata();
  if (const auto found = metadata.find("grpc-retry-pushback-ms"); found != metadata.end()) {
    status.SetPayload(kPushback, absl::Cord(absl::string_view(found->second.data(), found->second.size())));
  }
  return status;
}

// At least what the service asked for, and up to half more, so that those it refused do not come back at
// once. Nothing where it did not say.
std::optional<absl::Duration> PauseAskedFor(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kPushback);
  int64_t milliseconds = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &milliseconds) || milliseconds < 0) {
    return std::nullopt;
  }
  std::minstd_rand random(std::random_device{}());
  return absl::Milliseconds(milliseconds) * std::uniform_real_distribution<double>(1, 1.5)(random);
}

// The service takes no new compiles (kilnctl drain): nobody waits for it to take some, and it still has hits.
bool IsDrained(const absl::Status& status) {
  return absl::IsUnavailable(status) && status.GetPayload(kPushback).has_value();
}

// False where the caller was told to end meanwhile.
bool Pause(absl::Duration pause, Cancellation& cancellation) {
  absl::Mutex mutex;
  MonotonicCondVar changed;
  bool told = false;
  cancellation.OnCancel([&] {
    absl::MutexLock lock(&mutex);
    told = true;
    changed.SignalAll();
  });
  {
    const MonotonicTime end = MonotonicAfter(pause);
    absl::MutexLock lock(&mutex);
    while (!told && MonotonicNow() < end) changed.WaitUntil(&mutex, end);
  }
  cancellation.OnCancel(nullptr);
  return !told;
}

double SecondsSince(MonotonicTime start) { return SecondsBetween(start, MonotonicNow()); }

TlsFiles TlsOf(const ClientOptions& options) {
  return {options.tls.certificate, options.tls.key, options.tls.authority};
}

// One call's way through the service.
class Session {
 public:
  Session(const ClientOptions& options, std::string address, v1::Compiler::Stub& stub, ObjectCache& cache,
          const CompileRequestInput& input, MonotonicTime deadline, Cancellation& cancellation)
      : options_(options),
        address_(std::move(address)),
        stub_(stub),
        cache_(cache),
        input_(input),
        deadline_(deadline),
        cancellation_(cancellation) {}

  absl::StatusOr<CompiledArtifact> Run(bool compile) {
    MonotonicTime start = MonotonicNow();
    v1::LookupReply found;
    KILN_RETURN_IF_ERROR(SayHello(input_.want_debug ? nullptr : &found));
    artifact_.lookup_seconds = SecondsSince(start);
    switch (found.kind_case()) {
      case v1::LookupReply::kHit: {
        artifact_.hit = true;
        absl::Status adopted = Adopt(found.hit().manifest());
        if (adopted.ok()) adopted = Fetch();
        // An entry that the service can no longer serve whole is a miss.
        if (absl::IsDataLoss(adopted)) artifact_.refused.push_back(std::string(adopted.message()));
        if (absl::IsNotFound(adopted) || absl::IsDataLoss(adopted)) break;
        KILN_RETURN_IF_ERROR(adopted);
        return std::move(artifact_);
      }
      case v1::LookupReply::kFailed: return FromFailure(found.failed());
      default: break;
    }
    if (!compile) return absl::NotFoundError("not in the cache");
    artifact_.hit = false;
    start = MonotonicNow();
    if (found.kind_case() == v1::LookupReply::kInFlight) {
      absl::Status attached = Attach(found.in_flight().job_id());
      // The flight may have ended between the two calls, or the daemon be too old to be asked so.
      const bool lacking = absl::IsUnimplemented(attached) && !attached.GetPayload(kAnswered).has_value();
      if (absl::IsNotFound(attached) || lacking) attached = Compile();
      KILN_RETURN_IF_ERROR(attached);
    } else {
      KILN_RETURN_IF_ERROR(Compile());
    }
    artifact_.compile_seconds = SecondsSince(start);
    KILN_RETURN_IF_ERROR(Fetch());
    return std::move(artifact_);
  }

 private:
  // The context of one RPC. One at a time is told to end, and what it has `beside` it, which outlives it.
  class Call {
   public:
    explicit Call(const Session& session, Call* beside = nullptr)
        : beside_(beside), cancellation_(session.cancellation_) {
      context_.set_deadline(GrpcDeadline(session.deadline_));
      context_.AddMetadata(kProtocolMetadata, ToText(kProtocol));
      Listen();
    }
    ~Call() {
      if (beside_ != nullptr) {
        beside_->Listen();
      } else {
        cancellation_.OnCancel(nullptr);
      }
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    grpc::ClientContext* context() { return &context_; }

   private:
    void Listen() {
      cancellation_.OnCancel([this] {
        context_.TryCancel();
        if (beside_ != nullptr) beside_->context_.TryCancel();
      });
    }
    grpc::ClientContext context_;
    Call* const beside_;
    Cancellation& cancellation_;
  };

  v1::WorkClass WorkClass() const { return options_.background ? v1::WORK_BACKGROUND : v1::WORK_INTERACTIVE; }

  // Learns whose signatures count, and meanwhile, where `found` is not null, looks up: both go out at once.
  absl::Status SayHello(v1::LookupReply* found) {
    v1::HelloRequest request;
    request.set_protocol_min(kProtocol.min);
    request.set_protocol_max(kProtocol.max);
    v1::HelloReply reply;
    grpc::Status said;
    grpc::CompletionQueue answers;
    Call call(*this);
    const auto hello = stub_.AsyncHello(call.context(), request, &answers);
    hello->Finish(&reply, &said, this);
    const absl::Status looked = found != nullptr ? Lookup(call, *found) : absl::OkStatus();
    void* which = nullptr;
    bool ok = false;
    answers.Next(&which, &ok);  // at the deadline at the latest
    KILN_RETURN_IF_ERROR(looked);
    KILN_RETURN_IF_ERROR(FromGrpc(said, "hello"));
    keys_.emplace(reply, address_, options_.name_space, options_.trusted_keys);
    return absl::OkStatus();
  }

  absl::Status Lookup(Call& beside, v1::LookupReply& reply) {
    Call call(*this, &beside);
    v1::LookupRequest request;
    request.set_namespace_(options_.name_space);
    request.set_request_key(input_.request_key);
    *request.mutable_hints() = input_.hints;
    request.set_job(options_.job);
    *request.mutable_gang() = input_.gang;
    if (const uint64_t runs = TakeRuns(); runs > 0) request.mutable_use()->set_executed(runs);
    return FromGrpc(stub_.Lookup(call.context(), request, &reply), "lookup");
  }

  // Whether the program lasts is the daemon's matter, and told where the daemon knows it soon. On a slow disk
  // this caller leaves: he was served, and the write goes on without him.
  template <typename Stream>
  void HearOfStore(Stream& stream, Call& call) {
    std::promise<void> heard;
    const auto hear = [&] {
      v1::CompileEvent event;
      while (ReadNext(stream, &event)) {
        if (event.kind_case() == v1::CompileEvent::kDone) artifact_.not_kept = event.done().not_kept();
      }
      stream.Finish();
      heard.set_value();
    };
    absl::StatusOr<std::thread> hears = StartThread(hear);
    if (!hears.ok()) {  // nor does he wait where the host gives no thread
      call.context()->TryCancel();
      return hear();
    }
    if (heard.get_future().wait_for(kStorePatience) == std::future_status::timeout)
      call.context()->TryCancel();
    hears->join();
  }

  template <typename Stream>
  absl::Status Follow(Stream& stream, Call& call) {
    v1::CompileEvent event;
    bool have = false;
    absl::Status failed;
    while (!have && ReadNext(stream, &event)) {
      if (event.kind_case() == v1::CompileEvent::kQueued) {
        artifact_.joined = event.queued().joined();
      } else if (event.kind_case() == v1::CompileEvent::kDebug) {
        artifact_.debug_files.push_back(std::move(*event.mutable_debug()));
      } else if (event.kind_case() == v1::CompileEvent::kFailed) {
        failed = FromFailure(event.failed());
      } else if (event.kind_case() == v1::CompileEvent::kDone) {
        failed = Adopt(event.done().manifest());
        have = failed.ok();
        if (const uint32_t lost = event.done().workers_lost(); lost > 0) {
          artifact_.recovered.push_back(absl::StrCat(
              lost, lost == 1 ? " compiler process" : " compiler processes", " ended during a compile"));
        }
      }
    }
    if (have) {
      HearOfStore(stream, call);
      return absl::OkStatus();
    }
    absl::Status ended = FromGrpc(stream.Finish(), "compile");
    if (!failed.ok()) return failed;
    if (!ended.ok()) return ended;
    return absl::InternalError("the service ended a compile without a result");
  }

  absl::Status Compile() {
    Call call(*this);
    auto stream = stub_.Compile(call.context());
    v1::CompileRequest request;
    v1::CompileHeader& header = *request.mutable_header();
    header.set_namespace_(options_.name_space);
    *header.mutable_sections() = input_.sections;
    header.set_graph_bytes(input_.graph.size());
    *header.mutable_hints() = input_.hints;
    *header.mutable_notes() = input_.notes;
    LimitNotes(header.mutable_notes());
    header.set_job(options_.job);
    header.set_work_class(WorkClass());
    header.set_want_debug(input_.want_debug);
    *header.mutable_gang() = input_.gang;
    bool open = stream->Write(request);
    const std::string packed = ZstdCompress(input_.graph);
    artifact_.uploaded_bytes = packed.size();
    for (size_t at = 0; open && at < packed.size(); at += kChunkBytesMax) {
      request.set_graph_chunk(packed.substr(at, kChunkBytesMax));
      open = stream->Write(request);
    }
    stream->WritesDone();
    return WithPushback(Follow(*stream, call), *call.context());
  }

  absl::Status Attach(const std::string& job) {
    Call call(*this);
    v1::AttachRequest request;
    request.set_namespace_(options_.name_space);
    request.set_job_id(job);
    *request.mutable_hints() = input_.hints;
    request.set_work_class(WorkClass());
    *request.mutable_gang() = input_.gang;
    artifact_.joined = true;
    auto stream = stub_.Attach(call.context(), request);
    return WithPushback(Follow(*stream, call), *call.context());
  }

  absl::Status Adopt(const v1::SignedManifest& signed_manifest) {
    v1::Manifest manifest;
    if (!ParseProto(signed_manifest.manifest(), "manifest", &manifest).ok()) {
      return absl::DataLossError("the service answered with what is no manifest");
    }
    KILN_RETURN_IF_ERROR(keys_->Check(signed_manifest, manifest));
    if (manifest.request_key() != input_.request_key) {
      return absl::DataLossError("the service answered with the manifest of another request");
    }
    artifact_.manifest = std::move(manifest);
    return absl::OkStatus();
  }

  // Packed and raw sizes by digest, of the objects that this process lacks.
  absl::Status Fetch() {
    const MonotonicTime start = MonotonicNow();
    MissingObjects missing;
    std::vector<std::string> order;
    auto want = [&](const v1::ObjectRef& ref) {
      if (auto cached = cache_.Find(ref.digest()); cached != nullptr) {
        artifact_.objects[ref.digest()] = std::move(cached);
      } else if (missing.emplace(ref.digest(), &ref).second) {
        order.push_back(ref.digest());
      }
    };
    for (const v1::ObjectRef* object : ObjectsOf(artifact_.manifest)) {
      if (object->kind() != v1::LOOP_IR || input_.want_loop_ir) want(*object);
    }
    if (!order.empty()) KILN_RETURN_IF_ERROR(FetchMissing(order, missing));
    artifact_.fetch_seconds = SecondsSince(start);
    artifact_.fetched_objects = order.size();
    return absl::OkStatus();
  }

  absl::Status FetchMissing(const std::vector<std::string>& order, MissingObjects& missing) {
    Call call(*this);
    v1::FetchObjectsRequest request;
    request.set_namespace_(options_.name_space);
    request.set_compile_key(artifact_.manifest.compile_key());
    request.set_variant_id(artifact_.manifest.variant_id());
    for (const std::string& digest : order) request.add_digests(digest);
    auto stream = stub_.FetchObjects(call.context(), request);
    const auto store = [this](const v1::ObjectRef& ref, const std::string& packed) {
      return Store(ref, packed);
    };
    KILN_RETURN_IF_ERROR(ReadObjects(call.context(), *stream, &missing, store));
    // What has come is kept: a full service is asked again for the rest.
    KILN_RETURN_IF_ERROR(WithPushback(FromGrpc(stream->Finish(), "fetch objects"), *call.context()));
    return missing.empty() ? absl::OkStatus() : absl::NotFoundError("the service did not send every object");
  }

  absl::Status Store(const v1::ObjectRef& ref, const std::string& packed) {
    KILN_ASSIGN_OR_RETURN(std::string raw, ZstdDecompress(packed, ref.raw_size()));
    if (Sha256(raw) != ref.digest()) return absl::DataLossError("an object does not match its digest");
    auto bytes = std::make_shared<const std::string>(std::move(raw));
    cache_.Insert(ref.digest(), bytes);
    artifact_.objects[ref.digest()] = std::move(bytes);
    return absl::OkStatus();
  }

  const ClientOptions& options_;
  const std::string address_;
  v1::Compiler::Stub& stub_;
  ObjectCache& cache_;
  const CompileRequestInput& input_;
  const MonotonicTime deadline_;
  Cancellation& cancellation_;
  std::optional<DaemonKeys> keys_;  // since Hello
  CompiledArtifact artifact_;
};

class GrpcClient : public Client {
 public:
  explicit GrpcClient(ClientOptions options)
      : options_(std::move(options)),
        cache_(kObjectCacheBytes),
        kept_(absl::Seconds(options_.idle_seconds)) {}

  absl::StatusOr<CompiledArtifact> Get(const CompileRequestInput& input, bool compile,
                                       Cancellation* cancellation) override {
    Cancellation nobodys;
    if (cancellation == nullptr) cancellation = &nobodys;
    if (!breaker_.Allows(MonotonicNow())) return ServiceAwayError();
    const MonotonicTime deadline = MonotonicAfter(absl::Seconds(options_.compile_seconds));
    bool connected = false;
    absl::StatusOr<CompiledArtifact> result =
        Once(input, compile, deadline, *cancellation, /*second_try=*/false, connected);
    // A daemon that left between the connection and the reply: once more, with a new one. A compile on
    // another host goes on while its caller is away, which joins it when the network is back. Objects that
    // went between a compile and their fetch, damaged or evicted: once more, which recompiles them. A full
    // queue: as often as there is time, when the daemon says, or a few times with growing pauses where it
    // does not.
    absl::Duration pause = absl::Milliseconds(50);
    const int losses_max = compile && IsAnotherHost() ? kConnectionLossesMax : 1;
    int losses = 0;
    std::string lost;
    std::vector<std::string> refused;
    for (int attempt = 0; !result.ok() && !cancellation->cancelled(); ++attempt) {
      // Certificates that were good a moment ago are: it broke in the handshake.
      // What the service has said of the compile is no lost connection, whatever its code.
      const bool said = result.status().GetPayload(kAnswered).has_value();
      const bool away = (absl::IsUnavailable(result.status()) && !said) ||
                        (absl::IsUnauthenticated(result.status()) && !connected && losses > 0);
      const bool gone =
          away && !IsDrained(result.status()) && (connected || losses > 0) && losses < losses_max;
      const bool full = result.status().code() == absl::StatusCode::kResourceExhausted;
      const bool lost_objects =
          compile && attempt == 0 && (absl::IsNotFound(result.status()) || absl::IsDataLoss(result.status()));
      const std::optional<absl::Duration> asked = PauseAskedFor(result.status());
      const bool again = gone || lost_objects || (full && (asked.has_value() || attempt < kFullAttempts));
      const absl::Duration wait = asked.value_or(pause);
      if (!again || MonotonicAfter(wait) >= deadline) break;
      if (gone && losses++ == 0) lost = std::string(result.status().message());
      if (absl::IsDataLoss(result.status())) refused.emplace_back(result.status().message());
      if (!Pause(wait, *cancellation)) break;
      pause *= 4;
      result = Once(input, compile, deadline, *cancellation, /*second_try=*/true, connected);
    }
    if (result.ok()) result->refused.insert(result->refused.begin(), refused.begin(), refused.end());
    if (result.ok() && !lost.empty()) {
      result->recovered.push_back(
          absl::StrCat("the compile service went away during a compile (", lost, ")"));
    }
    const absl::Status& status = result.status();
    if (absl::IsCancelled(status)) return result;  // says nothing about the service
    const bool answered = status.GetPayload(kAnswered).has_value() || IsDrained(status);
    const bool turned_away = absl::IsUnauthenticated(status) && !connected;
    if (!answered && (turned_away || absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status))) {
      breaker_.Failed(MonotonicNow());
      absl::Status away = status;
      away.SetPayload(kAway, absl::Cord());
      return away;
    }
    breaker_.Succeeded();
    return result;
  }

  std::string address() const override { return AddressText(options_); }

  void ReportUse(absl::Duration limit) override {
    Report(limit);
    kept_.Close();
  }

 private:
  // An embedded daemon is this host's, and so is a unix socket.
  bool IsAnotherHost() const {
    return !options_.address.empty() && !absl::StartsWith(options_.address, "unix:");
  }

  void Report(absl::Duration limit) {
    v1::ReportUseRequest request;
    request.mutable_use()->set_executed(TakeRuns());
    if (request.use().executed() == 0 || !breaker_.Allows(MonotonicNow())) return;
    const MonotonicTime deadline = MonotonicAfter(limit);
    // Of the daemon that answered; kiln-call may be new, and its caller's was another process.
    absl::StatusOr<std::string> address = LastAddress();
    if (address->empty()) address = FindAddress(options_);
    if (!address.ok()) return;
    request.set_namespace_(options_.name_space);
    request.set_job(options_.job);
    grpc::ClientContext context;
    context.set_deadline(GrpcDeadline(deadline));
    context.AddMetadata(kProtocolMetadata, ToText(kProtocol));
    v1::ReportUseReply reply;
    const absl::StatusOr<KeptChannel::Lease> lease = kept_.Take(*address, TlsOf(options_), deadline);
    if (!lease.ok()) return;
    // Nobody is there any more who could be told how it went.
    v1::Compiler::NewStub(lease->channel())->ReportUse(&context, request, &reply).IgnoreError();
  }

  std::string LastAddress() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return last_address_;
  }

  // `second_try`: the caller knows already how the daemon of the first one ended.
  absl::StatusOr<CompiledArtifact> Once(const CompileRequestInput& input, bool compile,
                                        MonotonicTime deadline, Cancellation& cancellation, bool second_try,
                                        bool& connected) {
    connected = false;
    const MonotonicTime start = MonotonicNow();
    const MonotonicTime connect_deadline =
        std::min(deadline, MonotonicAfter(absl::Seconds(options_.connect_seconds)));
    std::string address = options_.address;
    bool left_behind = false;
    if (address.empty()) {
      KILN_ASSIGN_OR_RETURN(DaemonPlace place, PlaceDaemon(options_));
      KILN_ASSIGN_OR_RETURN(left_behind, EnsureDaemon(options_.daemon_binary, place, connect_deadline));
      address = absl::StrCat("unix:", place.socket);
    }
    KILN_ASSIGN_OR_RETURN(KeptChannel::Lease lease, kept_.Take(address, TlsOf(options_), connect_deadline));
    auto stub = v1::Compiler::NewStub(lease.channel());
    connected = true;
    {
      absl::MutexLock lock(&mutex_);
      last_address_ = address;
    }
    const double connect_seconds = SecondsSince(start);
    Session session(options_, address, *stub, cache_, input, deadline, cancellation);
    absl::StatusOr<CompiledArtifact> result = session.Run(compile);
    // Or it may be broken: nobody has answered by it.
    const bool said = result.status().GetPayload(kAnswered).has_value();
    if (!said && (absl::IsUnavailable(result.status()) || absl::IsDeadlineExceeded(result.status())))
      lease.SetBroken();
    // A call that was not this side's to cancel: it reached a service that was just ending.
    if (absl::IsCancelled(result.status()) && !cancellation.cancelled() &&
        !result.status().GetPayload(kAnswered).has_value()) {
      return absl::UnavailableError(result.status().message());
    }
    if (!result.ok()) return result;
    result->connect_seconds = connect_seconds;
    if (left_behind && !second_try) {
      result->recovered.push_back(
          absl::StrCat("the kilnd that served on ", address, " was killed, or its machine restarted"));
    }
    return result;
  }

  const ClientOptions options_;
  ObjectCache cache_;
  KeptChannel kept_;
  Breaker breaker_;
  mutable absl::Mutex mutex_;
  std::string last_address_ ABSL_GUARDED_BY(mutex_);  // that a connection was made to
};

}  // namespace

absl::Status CheckConnection(const ClientOptions& options) {
  if (options.upstream.empty()) {
    return options.address.empty() ? absl::OkStatus()
                                   : CheckTls(options.address, TlsOf(options), TlsVariables());
  }
  if (!options.address.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("KILN_UPSTREAM is the embedded daemon's, and KILN_ADDRESS (", options.address,
                     ") is asked instead of it: set one of them"));
  }
  if (absl::StartsWith(options.upstream, "unix:")) return absl::OkStatus();
  const TlsFiles files = TlsOf(options);
  KILN_RETURN_IF_ERROR(CheckTls(options.upstream, files, TlsVariables()));
  if (files.certificate.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(options.upstream, " is reached by mutual TLS alone: set ",
                                                   TlsVariables().authority, ", ", TlsVariables().certificate,
                                                   " and ", TlsVariables().key));
  }
  return ReadTlsPems(files, TlsVariables()).status();
}

std::unique_ptr<Client> NewClient(ClientOptions options) {
  return NewGangClient(NewForkedClient(options, std::make_unique<GrpcClient>(options)));
}

}  // namespace kiln
