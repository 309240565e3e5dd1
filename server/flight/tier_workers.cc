#include "server/flight/tier_workers.h"

#include <utility>
#include <vector>

#include "compiler/support/status_macros.h"

namespace kiln {

TierWorkers::TierWorkers(const v1::Config& config, const std::string& compiler, SharedTier* tier)
    : config_(config) {
  if (tier == nullptr) return;
  list_.emplace(tier->work(), compiler, std::string(Tuner::Policy()));
  const v1::WorkList how = config.tier().work_list();
  asks_ = how == v1::WORK_LIST_ASK || how == v1::WORK_LIST_BOTH;
  serves_ = how == v1::WORK_LIST_SERVE || how == v1::WORK_LIST_BOTH;
}

absl::Status TierWorkers::StartAsking(Store* store, TuningRecords* records, HitIndex* index) {
  if (!asks_) return absl::OkStatus();
  WorkAsker::Outside outside;
  outside.store = store;
  outside.list = &*list_;
  outside.records = records;
  outside.forget = [index](const std::string& compile_key) { index->Erase(compile_key); };
  KILN_ASSIGN_OR_RETURN(asker_, WorkAsker::Create(std::move(outside)));
  return absl::OkStatus();
}

absl::Status TierWorkers::StartServing(MeasuringPool* gpus, Tuner* tuner, TuningRecords* records,
                                       Coordinator* coordinator) {
  coordinator->SetWaiting(asker_.get());
  if (!serves_ || gpus == nullptr) return absl::OkStatus();
  WorkServer::Outside outside;
  for (const v1::TenantConfig& tenant : config_.listen().tenants())
    outside.namespaces.push_back(tenant.name());
  outside.emit_limit = absl::Seconds(config_.workers().emit_seconds_max());
  outside.list = &*list_;
  outside.gpus = gpus;
  outside.tuner = tuner;
  outside.records = records;
  outside.coordinator = coordinator;
  KILN_ASSIGN_OR_RETURN(server_, WorkServer::Create(std::move(outside)));
  return absl::OkStatus();
}

void TierWorkers::Stop() {
  if (server_ != nullptr) server_->Stop();
  if (asker_ != nullptr) asker_->Stop();
}

v1::TierWorkStatus TierWorkers::status() const {
  v1::TierWorkStatus status;
  if (asker_ != nullptr) asker_->AddTo(&status);
  if (server_ != nullptr) server_->AddTo(&status);
  return status;
}

}  // namespace kiln
