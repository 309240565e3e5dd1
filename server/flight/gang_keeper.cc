#include "server/flight/gang_keeper.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace kiln {
namespace {

// Ids and keys have one length each.
std::string SlotOf(const GangName& name) { return absl::StrCat(name.gang, name.compile_key, name.ns); }

}  // namespace

std::vector<GangTable::Listed> GangKeeper::Due() {
  std::vector<GangTable::Listed> held = table_->List();
  absl::flat_hash_set<std::string> slots;
  for (const GangTable::Listed& listed : held) slots.insert(SlotOf(listed.name));
  absl::erase_if(seen_, [&](const auto& seen) { return !slots.contains(seen.first); });
  return held;
}

std::optional<GangKeeper::News> GangKeeper::Look(const GangName& name, std::string mark) {
  const v1::GangVerdict held = table_->Held(name);
  News news{name, std::move(mark), held.variants_size() + (held.has_refusal() ? 1 : 0)};
  const auto found = seen_.find(SlotOf(name));
  const bool known = found != seen_.end() && !news.mark.empty() && found->second.mark == news.mark &&
                     found->second.length == news.length;
  if (known) return std::nullopt;
  return news;
}

void GangKeeper::Seen(const News& news, const v1::GangVerdict& written) {
  if (IsEmpty(written)) seen_[SlotOf(news.name)] = news;
}

}  // namespace kiln
