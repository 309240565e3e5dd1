// The Admin service (proto/kiln/v1/admin.proto), for kilnctl. It reads the store through the same
// chain as everybody else and never shows an entry that does not parse as its key says. Listings are in
// no store: workers regenerate them from the stored loop IR, and only of the code that is stored. Whoever
// goes is worked for no more. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache/shared/shared_tier.h"
#include "cache/signatures.h"
#include "cache/store.h"
#include "kiln/v1/admin.grpc.pb.h"
#include "kiln/v1/config.pb.h"
#include "server/auth/gate.h"
#include "server/flight/coordinator.h"
#include "server/flight/tier_workers.h"
#include "server/observe/stats.h"
#include "server/rpc/entry_choice.h"
#include "server/rpc/program_diff.h"
#include "server/rpc/request_limits.h"
#include "server/schedule/executor.h"
#include "server/tune/tuning_records.h"
#include "server/upstream/upstream.h"

namespace kiln {

struct AdminFacts {
  int64_t started_unix_seconds = 0;
  const std::atomic<bool>* draining = nullptr;                 // not owned
  std::string address;                                         // where the daemon listens
  std::function<std::map<std::string, size_t>()> connections;  // of each tenant
  SharedTier* tier = nullptr;                                  // not owned; null where there is none
  const TierWorkers* tier_workers = nullptr;                   // likewise
  TuningRecords* tuning_records = nullptr;                     // not owned
  const Upstream* upstream = nullptr;                          // not owned; null where there is none
};

class AdminService final : public v1::Admin::CallbackService {
 public:
  // `gate`: of the server that the service is registered with. All else outlives the service; `gpus` is
  // nullptr where nothing is measured.
  AdminService(const v1::Config& config, const Gate& gate, AdminFacts facts, const Signatures* signatures,
               Store* store, WorkerPool* pool, const MeasuringPool* gpus, Coordinator* coordinator,
               Executor* threads, kiln::Stats* stats)
      : config_(config),
        gate_(gate),
        facts_(std::move(facts)),
        signatures_(signatures),
        store_(store),
        pool_(pool),
        gpus_(gpus),
        coordinator_(coordinator),
        threads_(threads),
        stats_(stats) {}

  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context, const v1::StatusRequest* request,
                                   v1::StatusReply* reply) override {
    return Run(context, Rpc::kStatus, request, reply, &AdminService::AnswerStatus);
  }
  grpc::ServerUnaryReactor* Stats(grpc::CallbackServerContext* context, const v1::StatsRequest* request,
                                  v1::StatsReply* reply) override {
    return Run(context, Rpc::kStats, request, reply, &AdminService::AnswerStats);
  }
  grpc::ServerUnaryReactor* Jobs(grpc::CallbackServerContext* context, const v1::JobsRequest* request,
                                 v1::JobsReply* reply) override {
    return Run(context, Rpc::kJobs, request, reply, &AdminService::AnswerJobs);
  }
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context, const v1::ListRequest* request,
                                 v1::ListReply* reply) override {
    return Run(context, Rpc::kList, request, reply, &AdminService::AnswerList);
  }
  grpc::ServerUnaryReactor* Show(grpc::CallbackServerContext* context, const v1::ShowRequest* request,
                                 v1::ShowReply* reply) override {
    return Run(context, Rpc::kShow, request, reply, &AdminService::AnswerShow);
  }
  grpc::ServerUnaryReactor* Verify(grpc::CallbackServerContext* context, const v1::VerifyRequest* request,
                                   v1::VerifyReply* reply) override {
    return Run(context, Rpc::kVerify, request, reply, &AdminService::AnswerVerify);
  }
  grpc::ServerUnaryReactor* Remove(grpc::CallbackServerContext* context, const v1::RemoveRequest* request,
                                   v1::RemoveReply* reply) override {
    return Run(context, Rpc::kRemove, request, reply, &AdminService::AnswerRemove);
  }
  grpc::ServerUnaryReactor* Pin(grpc::CallbackServerContext* context, const v1::PinRequest* request,
                                v1::PinReply* reply) override {
    return Run(context, Rpc::kPin, request, reply, &AdminService::AnswerPin);
  }
  grpc::ServerUnaryReactor* Evict(grpc::CallbackServerContext* context, const v1::EvictRequest* request,
                                  v1::EvictReply* reply) override {
    return Run(context, Rpc::kEvict, request, reply, &AdminService::AnswerEvict);
  }
  grpc::ServerUnaryReactor* Keys(grpc::CallbackServerContext* context, const v1::KeysRequest* request,
                                 v1::KeysReply* reply) override {
    return Run(context, Rpc::kKeys, request, reply, &AdminService::AnswerKeys);
  }
  grpc::ServerUnaryReactor* Why(grpc::CallbackServerContext* context, const v1::WhyRequest* request,
                                v1::WhyReply* reply) override {
    return Run(context, Rpc::kWhy, request, reply, &AdminService::AnswerWhy);
  }
  grpc::ServerUnaryReactor* Diff(grpc::CallbackServerContext* context, const v1::DiffRequest* request,
                                 v1::DiffReply* reply) override {
    return Run(context, Rpc::kDiff, request, reply, &AdminService::AnswerDiff);
  }
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context, const v1::DrainRequest* request,
                                  v1::DrainReply* reply) override {
    return Run(context, Rpc::kDrain, request, reply, &AdminService::AnswerDrain);
  }
  grpc::ServerUnaryReactor* Tenants(grpc::CallbackServerContext* context, const v1::TenantsRequest* request,
                                    v1::TenantsReply* reply) override {
    return Run(context, Rpc::kTenants, request, reply, &AdminService::AnswerTenants);
  }

 private:
  // On a thread for people, so that nobody else waits for what they ask.
  template <typename Request, typename Reply>
  grpc::ServerUnaryReactor* Run(grpc::CallbackServerContext* context, Rpc rpc, const Request* request,
                                Reply* reply,
                                absl::Status (AdminService::*answer)(const grpc::CallbackServerContext&,
                                                                     const Request&, Reply*)) {
    grpc::ServerUnaryReactor* call = context->DefaultReactor();
    if (const auto who = gate_.Admit(*context, rpc); !who.ok()) {
      call->Finish(ToGrpc(who.status()));
      return call;
    }
    auto scope = std::make_shared<CallScope>(stats_);  // copied into the work, which is a std::function
    threads_->Post([this, context, request, reply, answer, call, scope] {
      if (context->IsCancelled()) {
        call->Finish(ToGrpc(absl::CancelledError("the caller has gone")));
        return;
      }
      call->Finish(ToGrpc((this->*answer)(*context, *request, reply)));
    });
    return call;
  }
  absl::Status AnswerStatus(const grpc::CallbackServerContext& context, const v1::StatusRequest& request,
                            v1::StatusReply* reply);
  absl::Status AnswerStats(const grpc::CallbackServerContext& context, const v1::StatsRequest& request,
                           v1::StatsReply* reply);
  absl::Status AnswerJobs(const grpc::CallbackServerContext& context, const v1::JobsRequest& request,
                          v1::JobsReply* reply);
  absl::Status AnswerList(const grpc::CallbackServerContext& context, const v1::ListRequest& request,
                          v1::ListReply* reply);
  absl::Status AnswerShow(const grpc::CallbackServerContext& context, const v1::ShowRequest& request,
                          v1::ShowReply* reply);
  absl::Status AnswerVerify(const grpc::CallbackServerContext& context, const v1::VerifyRequest& request,
                            v1::VerifyReply* reply);
  absl::Status AnswerRemove(const grpc::CallbackServerContext& context, const v1::RemoveRequest& request,
                            v1::RemoveReply* reply);
  absl::Status AnswerPin(const grpc::CallbackServerContext& context, const v1::PinRequest& request,
                         v1::PinReply* reply);
  absl::Status AnswerEvict(const grpc::CallbackServerContext& context, const v1::EvictRequest& request,
                           v1::EvictReply* reply);
  absl::Status AnswerKeys(const grpc::CallbackServerContext& context, const v1::KeysRequest& request,
                          v1::KeysReply* reply);
  absl::Status AnswerWhy(const grpc::CallbackServerContext& context, const v1::WhyRequest& request,
                         v1::WhyReply* reply);
  absl::Status AnswerDiff(const grpc::CallbackServerContext& context, const v1::DiffRequest& request,
                          v1::DiffReply* reply);
  absl::Status AnswerDrain(const grpc::CallbackServerContext& context, const v1::DrainRequest& request,
                           v1::DrainReply* reply);
  absl::Status AnswerTenants(const grpc::CallbackServerContext& context, const v1::TenantsRequest& request,
                             v1::TenantsReply* reply);
  struct Found {
    CatalogEntry entry;
    v1::Manifest manifest;
    v1::RequestSections sections;
    v1::GraphNotes notes;
    v1::Hints hints;
  };
  absl::StatusOr<Found> ReadEntry(const CatalogEntry& entry);
  // The program, and of several variants the first, of the one key that starts so; a whole key that is not
  // stored here is asked of the shared tier. `field` names it in errors.
  absl::StatusOr<ComparedEntry> ReadCompared(const grpc::CallbackServerContext& context,
                                             absl::string_view field, const std::string& hex);
  absl::StatusOr<ComparedEntry> ReadComparedInTier(absl::string_view field, const std::string& compile_key);
  absl::Status RemoveAll(const grpc::CallbackServerContext& context, v1::RemoveReply* reply);
  v1::EntryInfo Describe(const Found& found) const;
  using ReadObjects = std::function<absl::StatusOr<std::string>(const v1::ObjectRef&)>;
  void ShowKernels(const Found& found, const ReadObjects& read, v1::ShownEntry* shown);
  // Emits the entry's kernels again and sets their listings, or texts that say why there is none. CANCELLED
  // when the caller has gone.
  class Tasks;
  absl::Status AddListings(const grpc::CallbackServerContext& context, const v1::Manifest& manifest,
                           v1::ShownEntry* shown);
  absl::StatusOr<std::string> ReadObject(const v1::ObjectRef& ref);

  const v1::Config config_;
  const Gate gate_;
  const AdminFacts facts_;
  const Signatures* const signatures_;
  Store* const store_;
  WorkerPool* const pool_;
  const MeasuringPool* const gpus_;
  Coordinator* const coordinator_;
  Executor* const threads_;
  kiln::Stats* const stats_;
};

}  // namespace kiln
