#include "client/admin/commands.h"

#include <stdlib.h>
#include <unistd.h>

#include <climits>
#include <ctime>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/admin/ask.h"
#include "client/admin/json.h"
#include "client/admin/text.h"
#include "client/src/daemon.h"
#include "compiler/support/digest.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

std::string Environment(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

std::string BesideSelf(const std::string& name) {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  const std::string self(path, length > 0 ? length : 0);
  return absl::StrCat(self.substr(0, self.rfind('/') + 1), name);
}

// "user, net; off: mount"
std::string LayersText(const v1::StatusReply& reply) {
  std::vector<std::string> on, off;
  for (const v1::SandboxLayer& layer : reply.sandbox()) (layer.on() ? on : off).push_back(layer.name());
  std::string text = on.empty() ? "NONE" : absl::StrJoin(on, ", ");
  if (!off.empty()) absl::StrAppend(&text, "; off: ", absl::StrJoin(off, ", "));
  return Printable(text);
}

std::string UsesTable(const v1::StatsReply& reply) {
  Table table({"TENANT", ">HITS", ">SAVED", ">COMPILES", ">SPENT", ">CALLS", "JOB"});
  for (const v1::JobUse& use : reply.uses()) {
    const bool tenants = use.several() && use.tenant().empty();
    table.Add({tenants ? "(others)" : use.tenant(), absl::StrCat(use.hits()),
               HumanSeconds(use.seconds_saved()), absl::StrCat(use.compiles()),
               HumanSeconds(use.compile_seconds()), absl::StrCat(use.executed()),
               use.several() ? "(others)" : use.job()});
  }
  return table.ToString();
}

}  // namespace

absl::Status ResolveAddress(const std::string& flag, AdminContext* context) {
  context->where = "--address";
  context->address = flag;
  if (context->address.empty()) {
    context->where = "KILN_ADDRESS";
    context->address = Environment("KILN_ADDRESS");
  }
  if (context->address.empty()) {
    ClientOptions options;
    options.daemon_binary = Environment("KILN_DAEMON");
    if (options.daemon_binary.empty()) options.daemon_binary = BesideSelf("kilnd");
    options.runtime_dir = Environment("KILN_RUNTIME_DIR");
    options.store_dir = Environment("KILN_STORE");
    if (options.upstream = Environment("KILN_UPSTREAM"); !options.upstream.empty()) {
      absl::StatusOr<std::string> upstream = NormalAddress(options.upstream);
      if (!upstream.ok()) {
        return absl::Status(upstream.status().code(),
                            absl::StrCat("KILN_UPSTREAM: ", upstream.status().message()));
      }
      options.upstream = context->upstream = *std::move(upstream);
      options.tls.authority = Environment("KILN_TLS_CA");
      options.tls.certificate = Environment("KILN_TLS_CERT");
      options.tls.key = Environment("KILN_TLS_KEY");
    }
    KILN_ASSIGN_OR_RETURN(const DaemonPlace place, PlaceDaemon(options));
    context->where = "the embedded daemon of this build; it starts with the first compile and goes when idle";
    context->address = absl::StrCat("unix:", place.socket);
  }
  absl::StatusOr<std::string> address = NormalAddress(context->address);
  if (!address.ok()) {
    return absl::Status(address.status().code(),
                        absl::StrCat(context->where, ": ", address.status().message()));
  }
  context->address = *std::move(address);
  return absl::OkStatus();
}

void AddWork(const v1::TierWorkStatus& work, Table* table) {
  if (work.asks()) {
    table->Add({"", absl::StrCat("work list: ", work.waiting(), " programs wait for other devices; ",
                                 work.asked(), " tunables asked for, ", work.full(), " had no room, ",
                                 work.remade(), " programs recompiled")});
  }
  if (work.serves_size() > 0) {
    table->Add({"", Printable(absl::StrCat("measures for others on ", absl::StrJoin(work.serves(), ", "),
                                           ": ", work.measured(), " measured, ", work.failed(), " failed, ",
                                           work.refused(), " refused"))});
  }
  if (!work.message().empty())
    table->Add({"", Printable(absl::StrCat("does not measure for others: ", work.message()))});
}

void AddTier(const v1::TierStatus& tier, Table* table) {
  std::string state = "connected";
  if (!tier.connected()) {
    state = absl::StrCat("NOT CONNECTED: ", tier.message());
  } else if (tier.breaker_open()) {
    state = "TOO SLOW, not asked for now";
  }
  table->Add({"tier", Printable(absl::StrCat(tier.address(), ", ", state))});
  table->Add({"", absl::StrCat(tier.hits(), " hits, ", tier.misses(), " misses, ", tier.refused(),
                               " refused; ", tier.writes(), " writes, ", tier.dropped_writes(), " dropped")});
  AddWork(tier.work(), table);
}

void AddUpstream(const v1::UpstreamStatus& upstream, Table* table) {
  std::string state = "connected";
  if (!upstream.connected()) {
    state = absl::StrCat("NOT CONNECTED: ", upstream.message());
  } else if (!upstream.message().empty()) {
    absl::StrAppend(&state, "; lately: ", upstream.message());
  }
  table->Add({"upstream", Printable(absl::StrCat(upstream.address(), ", ", state))});
  table->Add({"", absl::StrCat(upstream.hits(), " hits, ", upstream.misses(), " misses, ",
                               upstream.forwarded(), " compiled there, ", upstream.refused(), " refused, ",
                               upstream.away(), " times not to be had")});
}

int ExitCodeOf(const AdminContext& context, const grpc::Status& status) {
  if (status.ok()) return kExitOk;
  switch (status.error_code()) {
    case grpc::UNAVAILABLE:
    case grpc::DEADLINE_EXCEEDED:
      *context.error << "kilnctl: no kilnd answers at " << context.address << " (" << context.where
                     << "): " << Printable(status.error_message()) << "\n";
      return kExitUnreachable;
    case grpc::INVALID_ARGUMENT:
      *context.error << "kilnctl: " << Printable(status.error_message()) << "\n";
      return kExitUsage;
    default: *context.error << "kilnctl: " << Printable(status.error_message()) << "\n"; return kExitFailed;
  }
}

int RunStatus(const AdminContext& context) {
  v1::StatusReply reply;
  if (int code = Ask(context, &v1::Admin::Stub::Status, v1::StatusRequest(), &reply); code != kExitOk)
    return code;
  if (context.json) {
    *context.out << ToJson(reply);
    return kExitOk;
  }
  Table table({"KILND", Printable(reply.version())});
  table.Add({"address", reply.address()});
  table.Add({"pid", absl::StrCat(reply.pid())});
  table.Add({"up", Age(reply.started_unix_seconds(), time(nullptr))});
  table.Add({"build", reply.build_id()});
  table.Add({"compiler", reply.compiler_fingerprint()});
  table.Add({"signs with", absl::StrCat("key ", reply.signing_key().substr(0, 12), " (kilnctl keys)")});
  table.Add({"workers", absl::StrCat(reply.workers(), ", ", reply.workers_busy(), " busy")});
  table.Add({"sandbox", LayersText(reply)});
  for (const v1::MeasuringGpu& gpu : reply.gpus()) {
    const std::string state = !gpu.drained().empty() ? absl::StrCat("not used: ", gpu.drained())
                              : gpu.leased()         ? "measures now"
                                                     : absl::StrCat("free, ", gpu.leases(), " leases so far");
    table.Add({absl::StrCat("cuda:", gpu.ordinal()),
               Printable(absl::StrCat(gpu.name(), gpu.name().empty() ? "" : ", ", state))});
  }
  table.Add({"jobs", absl::StrCat(reply.running(), " running, ", reply.queued(), " queued")});
  table.Add({"store", reply.store_directory()});
  table.Add(
      {"", reply.store_writable() ? "writable" : absl::StrCat("NOT WRITABLE: ", reply.store_message())});
  if (reply.has_tier()) AddTier(reply.tier(), &table);
  if (reply.has_upstream()) AddUpstream(reply.upstream(), &table);
  if (reply.drained()) table.Add({"state", "drained: takes no new compiles until kilnctl drain --undo"});
  if (reply.draining()) table.Add({"state", "stopping: finishes its jobs, takes no new ones"});
  *context.out << table.ToString();
  return kExitOk;
}

int RunStats(const AdminContext& context) {
  v1::StatsReply reply;
  if (int code = Ask(context, &v1::Admin::Stub::Stats, v1::StatsRequest(), &reply); code != kExitOk)
    return code;
  if (context.json) {
    *context.out << ToJson(reply);
    return kExitOk;
  }
  Table table({"SINCE START", ">"});
  const auto count = [&](const char* name, uint64_t value) { table.Add({name, absl::StrCat(value)}); };
  count("lookups", reply.lookups());
  count("  hits", reply.hits());
  count("  misses", reply.misses());
  count("compiles", reply.compiles());
  count("compiles upstream", reply.forwarded());
  count("joined", reply.joined());
  count("failures", reply.failures());
  count("kernels emitted", reply.kernels_emitted());
  count("kernels reused", reply.kernels_reused());
  count("tunables measured", reply.tunables_measured());
  count("tunables reused", reply.tunables_reused());
  count("candidates lost", reply.candidates_lost());
  count("graphs uploaded", reply.graphs_uploaded());
  count("objects fetched", reply.fetched_objects());
  count("worker crashes", reply.worker_crashes());
  count("worker timeouts", reply.worker_timeouts());
  count("quarantined", reply.quarantined());
  count("  for signatures", reply.refused_signatures());
  count("evicted", reply.evicted());
  count("scrubbed", reply.scrubbed());
  *context.out << table.ToString();
  Table store({"STORE NOW", ">"});
  store.Add({"entries", absl::StrCat(reply.entries())});
  store.Add({"objects", absl::StrCat(reply.objects())});
  store.Add({"on disk", HumanBytes(reply.bytes())});
  *context.out << "\n" << store.ToString();
  if (reply.uses_size() > 0) *context.out << "\n" << UsesTable(reply);
  return kExitOk;
}

int RunJobs(const AdminContext& context) {
  v1::JobsReply reply;
  if (int code = Ask(context, &v1::Admin::Stub::Jobs, v1::JobsRequest(), &reply); code != kExitOk)
    return code;
  if (context.json) {
    *context.out << ToJson(reply);
    return kExitOk;
  }
  Table table({"JOB", "KEY", "PHASE", ">KERNELS", ">WAITERS", ">TIME", "TITLE"});
  for (const v1::JobInfo& job : reply.jobs()) {
    table.Add({ShortHex(job.job_id()), ShortHex(job.compile_key()), job.phase(),
               absl::StrCat(job.kernels_done(), "/", job.kernels_total()), absl::StrCat(job.waiters()),
               HumanSeconds(job.seconds()), job.title()});
  }
  *context.out << (table.rows() == 0 ? "no jobs\n" : table.ToString());
  return kExitOk;
}

int RunList(const AdminContext& context, uint32_t limit) {
  v1::ListRequest request;
  request.set_limit(limit);
  v1::ListReply reply;
  if (int code = Ask(context, &v1::Admin::Stub::List, request, &reply); code != kExitOk) return code;
  if (context.json) {
    *context.out << ToJson(reply);
    return kExitOk;
  }
  const int64_t now = time(nullptr);
  Table table({"KEY", "VARIANT", ">SIZE", ">KERNELS", ">CALLS", ">HITS", ">AGE", ">USED", "TITLE"});
  for (const v1::EntryInfo& entry : reply.entries()) {
    table.Add({ShortHex(entry.compile_key()), ShortHex(entry.variant_id()), HumanBytes(entry.bytes()),
               absl::StrCat(entry.kernels()), absl::StrCat(entry.library_calls()), absl::StrCat(entry.hits()),
               Age(entry.created_unix_seconds(), now), Age(entry.last_used_unix_seconds(), now),
               absl::StrCat(entry.pinned() ? "(pinned) " : "", entry.title())});
  }
  if (table.rows() == 0) {
    *context.out << "no entries\n";
    return kExitOk;
  }
  *context.out << table.ToString();
  if (reply.entries_size() < static_cast<int64_t>(reply.total())) {
    *context.out << reply.entries_size() << " of " << reply.total() << "; --limit 0 shows all\n";
  }
  return kExitOk;
}

int RunShow(const AdminContext& context, const std::string& key, bool listings) {
  v1::ShowRequest request;
  request.set_key_prefix(key);
  request.set_listings(listings);
  v1::ShowReply reply;
  if (int code = Ask(context, &v1::Admin::Stub::Show, request, &reply); code != kExitOk) return code;
  if (context.json) {
    *context.out << ToJson(reply);
    return kExitOk;
  }
  for (int i = 0; i < reply.entries_size(); ++i) {
    *context.out << (i > 0 ? "\n" : "") << ShowText(reply.entries(i), time(nullptr));
  }
  return kExitOk;
}

int RunVerify(const AdminContext& context, bool repair) {
  v1::VerifyRequest request;
  request.set_repair(repair);
  v1::VerifyReply reply;
  if (int code = Ask(context, &v1::Admin::Stub::Verify, request, &reply); code != kExitOk) return code;
  if (context.json) {
    *context.out << ToJson(reply);
  } else {
    *context.out << absl::StrFormat("%d entries and %d objects read: %d damaged, %d missing%s\n",
                                    reply.entries(), reply.objects(), reply.corrupt(), reply.missing(),
                                    repair && reply.corrupt() > 0 ? "; the damaged were taken out" : "");
    for (const std::string& detail : reply.details()) *context.out << "  " << Printable(detail) << "\n";
  }
  return reply.corrupt() == 0 && reply.missing() == 0 ? kExitOk : kExitFailed;
}

int RunRemove(const AdminContext& context, const std::string& key, bool all, bool every_match, bool tuning) {
  v1::RemoveRequest request;
  request.set_key_prefix(key);
  request.set_all(all);
  request.set_every_match(every_match);
  request.set_tuning(tuning);
  v1::RemoveReply reply;
  if (int code = Ask(context, &v1::Admin::Stub::Remove, request, &reply); code != kExitOk) return code;
  if (context.json) {
    *context.out << ToJson(reply);
  } else {
    *context.out << reply.removed() << (reply.removed() == 1 ? " entry removed" : " entries removed") << " ("
                 << reply.manifests() << " compiled, " << reply.failures() << " refused)";
    if (all) {
      *context.out << ", with " << reply.kernels() << " kernels, " << reply.objects() << " objects, "
                   << reply.tuning_records() << " tuning records";
    }
    if (tuning) *context.out << ", with " << reply.tuning_records() << " tuning records";
    *context.out << "\n";
  }
  return reply.removed() > 0 || all ? kExitOk : kExitFailed;
}

int RunPin(const AdminContext& context, const std::string& key, bool unpin, bool every_match) {
  v1::PinRequest request;
  request.set_key_prefix(key);
  request.set_unpin(unpin);
  request.set_every_match(every_match);
  v1::PinReply reply;
  if (int code = Ask(context, &v1::Admin::Stub::Pin, request, &reply); code != kExitOk) return code;
  if (context.json) {
    *context.out << ToJson(reply);
  } else {
    *context.out << reply.entries() << (reply.entries() == 1 ? " entry " : " entries ")
                 << (unpin ? "may be evicted again\n" : "pinned\n");
  }
  return reply.entries() > 0 ? kExitOk : kExitFailed;
}

int RunEvict(const AdminContext& context, uint64_t live_bytes) {
  v1::EvictRequest request;
  request.set_live_bytes(live_bytes);
  v1::EvictReply reply;
  if (int code = Ask(context, &v1::Admin::Stub::Evict, request, &reply); code != kExitOk) return code;
  if (context.json) {
    *context.out << ToJson(reply);
  } else {
    *context.out << reply.evicted() << " parts of entries evicted; " << HumanBytes(reply.bytes_on_disk())
                 << " on disk\n";
  }
  return kExitOk;
}

int RunKeys(const AdminContext& context) {
  v1::KeysReply reply;
  if (int code = Ask(context, &v1::Admin::Stub::Keys, v1::KeysRequest(), &reply); code != kExitOk)
    return code;
  if (context.json) {
    *context.out << ToJson(reply);
    return kExitOk;
  }
  Table table({"KEY", "PUBLIC KEY", "COUNTS FOR", "ID"});
  const auto add = [&](const char* what, const v1::KeysReply::Key& key) {
    const std::string names = absl::StrJoin(key.namespaces(), ", ");
    table.Add({what, key.public_key(), names.empty() ? "every namespace" : Printable(names), key.id()});
  };
  add("own", reply.own());
  for (const v1::KeysReply::Key& key : reply.trusted()) add("trusted", key);
  for (const std::string& id : reply.revoked()) table.Add({"revoked", "", "nothing", Printable(id)});
  *context.out << table.ToString();
  return kExitOk;
}

}  // namespace kiln
