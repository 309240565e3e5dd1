#include "server/flight/gang_variants.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/support/start_thread.h"
#include "compiler/support/status_macros.h"
#include "server/server_limits.h"

namespace kiln {
namespace {

constexpr absl::Duration kPauseMin = absl::Milliseconds(10);
constexpr absl::Duration kPauseMax = absl::Milliseconds(250);

}  // namespace

absl::StatusOr<std::unique_ptr<GangVariants>> GangVariants::Create(Look look, bool may_come) {
  std::unique_ptr<GangVariants> made(new GangVariants(std::move(look), may_come));
  for (size_t i = 0; i < kVariantThreads; ++i) {
    KILN_ASSIGN_OR_RETURN(made->threads_.emplace_back(),
                          StartThread([variants = made.get()] { variants->Run(); }));
  }
  return made;
}

GangVariants::~GangVariants() {
  List left;
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    left = std::move(waiting_);
    waiting_.clear();
    changed_.SignalAll();
  }
  for (const Wanted& wanted : left) wanted.answer(absl::CancelledError("the daemon stops"));
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void GangVariants::Bring(const GangName& name, const std::string& variant_id, Answer answer) {
  {
    absl::MutexLock lock(&mutex_);
    Tenant& tenant = tenants_[name.ns];
    if (tenant.wanted < kVariantsWantedPerTenantMax && !closing_) {
      ++tenant.wanted;
      waiting_.push_back(
          {name, variant_id, std::move(answer), MonotonicAfter(kVariantPatience), MonotonicNow(), kPauseMin});
      changed_.SignalAll();
      return;
    }
  }
  answer(absl::ResourceExhaustedError(absl::StrCat("members of this tenant's gangs wait for ",
                                                   kVariantsWantedPerTenantMax, " programs already")));
}

GangVariants::List GangVariants::AwaitDue() {
  List due;
  absl::MutexLock lock(&mutex_);
  while (!closing_) {
    const MonotonicTime now = MonotonicNow();
    MonotonicTime soonest = MonotonicTime::max();
    for (auto wanted = waiting_.begin(); wanted != waiting_.end(); ++wanted) {
      Tenant& tenant = tenants_.at(wanted->name.ns);
      if (tenant.looks >= kVariantLooksPerTenantMax) continue;
      if (wanted->next <= now) {
        ++tenant.looks;
        due.splice(due.end(), waiting_, wanted);
        return due;
      }
      soonest = std::min(soonest, wanted->next);
    }
    changed_.WaitUntil(&mutex_, soonest);
  }
  return due;
}

bool GangVariants::PutBack(List* looked, bool over) {
  absl::MutexLock lock(&mutex_);
  const auto tenant = tenants_.find(looked->front().name.ns);
  --tenant->second.looks;
  changed_.SignalAll();
  if (!over && !closing_) {
    waiting_.splice(waiting_.end(), *looked);
    return true;
  }
  if (--tenant->second.wanted == 0) tenants_.erase(tenant);
  return false;
}

void GangVariants::Run() {
  for (List due = AwaitDue(); !due.empty(); due = AwaitDue()) {
    Wanted& wanted = due.front();
    absl::StatusOr<KnownVariant> found = look_(wanted.name, wanted.variant_id);
    wanted.next = MonotonicAfter(wanted.pause);
    wanted.pause = std::min(wanted.pause * 2, kPauseMax);
    const bool over = found.ok() || !may_come_ || wanted.next >= wanted.deadline;
    if (PutBack(&due, over)) continue;
    due.front().answer(over ? std::move(found) : absl::CancelledError("the daemon stops"));
  }
}

}  // namespace kiln
