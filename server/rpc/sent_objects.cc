#include "server/rpc/sent_objects.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "compiler/support/status_macros.h"
#include "server/flight/caller_bytes.h"
#include "server/flight/refusals.h"

namespace kiln {
namespace {

constexpr absl::Duration kComeAgain = absl::Seconds(1);

}  // namespace

struct SentObjects::Object {
  Object(std::shared_ptr<Budget> of, std::string named, Share of_budget)
      : budget(std::move(of)), name(std::move(named)), share(std::move(of_budget)) {}
  ~Object();

  const std::shared_ptr<Budget> budget;
  const std::string name;  // among the budget's
  const Share share;       // until the last copy ends
  absl::Mutex mutex;       // held by who reads it; the others need it too
  EntryValue value ABSL_GUARDED_BY(mutex);
};

class SentObjects::Budget : public std::enable_shared_from_this<Budget> {
 public:
  explicit Budget(uint64_t bytes_max) : bytes_max_(bytes_max), bytes_(bytes_max) {}

  absl::StatusOr<Share> Reserve(const std::string& tenant, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return ReserveLocked(tenant, bytes);
  }

  absl::StatusOr<std::shared_ptr<Object>> Find(const std::string& tenant, const std::string& digest,
                                               uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_) {
    std::string name = absl::StrCat(digest, tenant);
    absl::MutexLock lock(&mutex_);
    if (const auto sent = objects_.find(name); sent != objects_.end()) {
      if (std::shared_ptr<Object> object = sent->second.lock(); object != nullptr) return object;
    }
    KILN_ASSIGN_OR_RETURN(Share share, ReserveLocked(tenant, bytes));
    auto object = std::make_shared<Object>(shared_from_this(), std::move(name), std::move(share));
    objects_[object->name] = object;
    return object;
  }

  void Forget(const std::string& name) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    // Another may have taken its place since its last copy ended.
    const auto found = objects_.find(name);
    if (found != objects_.end() && found->second.expired()) objects_.erase(found);
  }

 private:
  absl::StatusOr<Share> ReserveLocked(const std::string& tenant, uint64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!bytes_.Fits(tenant, bytes)) {
      return WithPushback(absl::ResourceExhaustedError(
                              absl::StrCat("objects on their way to callers have ", bytes_.total(), " of ",
                                           bytes_max_, " bytes (admission.objects_bytes_max), and ", bytes,
                                           " more are asked for: try again when they have been taken")),
                          kComeAgain);
    }
    bytes_.Add(tenant, bytes);
    return Share(this, [self = shared_from_this(), tenant, bytes](const void*) {
      absl::MutexLock lock(&self->mutex_);
      self->bytes_.Take(tenant, bytes);
    });
  }

  const uint64_t bytes_max_;
  absl::Mutex mutex_;
  CallerBytes bytes_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::weak_ptr<Object>> objects_ ABSL_GUARDED_BY(mutex_);
};

SentObjects::Object::~Object() { budget->Forget(name); }

SentObjects::SentObjects(uint64_t bytes_max) : budget_(std::make_shared<Budget>(bytes_max)) {}

absl::StatusOr<SentObjects::Share> SentObjects::Reserve(const std::string& tenant, uint64_t bytes) {
  return budget_->Reserve(tenant, bytes);
}

absl::StatusOr<EntryValue> SentObjects::Get(const std::string& tenant, const std::string& digest,
                                            uint64_t bytes,
                                            absl::FunctionRef<absl::StatusOr<EntryValue>()> read) {
  KILN_ASSIGN_OR_RETURN(const std::shared_ptr<Object> object, budget_->Find(tenant, digest, bytes));
  absl::MutexLock lock(&object->mutex);
  if (object->value == nullptr) {
    KILN_ASSIGN_OR_RETURN(object->value, read());
  }
  return EntryValue(object, object->value.get());
}

}  // namespace kiln
