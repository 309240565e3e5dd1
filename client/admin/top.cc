// kilnctl top: who has work in flight, and at what rate, from counts that are read twice.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <map>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/admin/ask.h"
#include "client/admin/json.h"
#include "client/admin/text.h"

namespace kiln {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRowsShown = 30;
constexpr char kClearScreen[] = "\x1b[H\x1b[J";

// What the daemon says at a moment.
struct Look {
  Clock::time_point time;
  v1::StatusReply status;
  v1::StatsReply stats;
  v1::JobsReply jobs;
};

int Read(const AdminContext& context, Look* look) {
  *look = Look();
  if (int code = Ask(context, &v1::Admin::Stub::Status, v1::StatusRequest(), &look->status); code != kExitOk)
    return code;
  if (int code = Ask(context, &v1::Admin::Stub::Stats, v1::StatsRequest(), &look->stats); code != kExitOk)
    return code;
  look->time = Clock::now();
  return Ask(context, &v1::Admin::Stub::Jobs, v1::JobsRequest(), &look->jobs);
}

// Counts begin at zero with a daemon.
double Rate(double before, double after, double seconds) {
  return after < before ? after / seconds : (after - before) / seconds;
}

using RowKey = std::tuple<std::string, std::string, bool>;  // tenant, job, several
using Rows = std::map<RowKey, v1::TopRow>;

v1::TopRow& RowOf(const std::string& tenant, const std::string& job, bool several, Rows* rows) {
  v1::TopRow& row = (*rows)[{tenant, job, several}];
  row.set_tenant(tenant);
  row.set_job(job);
  row.set_several(several);
  return row;
}

void AddUses(const Look& before, const Look& after, double seconds, Rows* rows) {
  std::map<RowKey, const v1::JobUse*> earlier;
  for (const v1::JobUse& use : before.stats.uses()) earlier[{use.tenant(), use.job(), use.several()}] = &use;
  for (const v1::JobUse& use : after.stats.uses()) {
    const auto found = earlier.find({use.tenant(), use.job(), use.several()});
    const v1::JobUse& then = found == earlier.end() ? v1::JobUse::default_instance() : *found->second;
    v1::TopRow& row = RowOf(use.tenant(), use.job(), use.several(), rows);
    row.set_hits(use.hits());
    row.set_compile_seconds(use.compile_seconds());
    row.set_hits_per_second(Rate(static_cast<double>(then.hits()), static_cast<double>(use.hits()), seconds));
    row.set_workers_busy(Rate(then.compile_seconds(), use.compile_seconds(), seconds));
  }
}

void AddJobs(const v1::JobsReply& jobs, Rows* rows) {
  for (const v1::JobInfo& job : jobs.jobs()) {
    v1::TopRow& row = RowOf(job.tenant(), job.job(), false, rows);
    const bool waits = job.phase() == "queued" || job.phase() == "looking" || job.phase() == "uploading";
    if (waits) {
      row.set_queued(row.queued() + 1);
    } else {
      row.set_running(row.running() + 1);
    }
    row.set_graph_bytes(row.graph_bytes() + job.graph_bytes());
  }
}

v1::TopSample Compare(const Look& before, const Look& after) {
  const double seconds = std::max(1e-3, std::chrono::duration<double>(after.time - before.time).count());
  Rows rows;
  AddUses(before, after, seconds, &rows);
  AddJobs(after.jobs, &rows);
  v1::TopSample sample;
  sample.set_seconds(seconds);
  sample.set_hits_per_second(
      Rate(static_cast<double>(before.stats.hits()), static_cast<double>(after.stats.hits()), seconds));
  sample.set_store_bytes(after.stats.bytes());
  *sample.mutable_status() = after.status;
  for (auto& [key, row] : rows) *sample.add_rows() = std::move(row);
  const auto rank = [](const v1::TopRow& row) {
    return std::make_tuple(row.running() + row.queued(), row.workers_busy(), row.hits_per_second());
  };
  std::stable_sort(sample.mutable_rows()->begin(), sample.mutable_rows()->end(),
                   [&](const v1::TopRow& a, const v1::TopRow& b) { return rank(a) > rank(b); });
  return sample;
}

std::string SampleText(const v1::TopSample& sample) {
  const v1::StatusReply& status = sample.status();
  std::string out = absl::StrFormat(
      "kilnd %s, up %s%s   workers %d of %d busy   %d running, %d queued   %.1f hits/s   store %s\n\n",
      Printable(status.version()), Age(status.started_unix_seconds(), time(nullptr)),
      status.drained() ? ", drained" : "", status.workers_busy(), status.workers(), status.running(),
      status.queued(), sample.hits_per_second(), HumanBytes(sample.store_bytes()));
  Table table({"TENANT", ">RUNNING", ">QUEUED", ">GRAPHS", ">BUSY", ">COMPILED", ">HITS/S", ">HITS", "JOB"});
  for (int i = 0; i < sample.rows_size() && i < kRowsShown; ++i) {
    const v1::TopRow& row = sample.rows(i);
    table.Add({row.several() && row.tenant().empty() ? "(others)" : row.tenant(), absl::StrCat(row.running()),
               absl::StrCat(row.queued()), HumanBytes(row.graph_bytes()),
               absl::StrFormat("%.1f", row.workers_busy()), HumanSeconds(row.compile_seconds()),
               absl::StrFormat("%.1f", row.hits_per_second()), absl::StrCat(row.hits()),
               row.several() ? "(others)" : row.job()});
  }
  absl::StrAppend(&out, table.rows() == 0 ? "no job yet\n" : table.ToString());
  if (sample.rows_size() > kRowsShown) {
    absl::StrAppend(&out, "and ", sample.rows_size() - kRowsShown,
                    " more; kilnctl top --once --json has all\n");
  }
  return out;
}

}  // namespace

int RunTop(const AdminContext& context, bool once, double interval_seconds) {
  const bool screen = !once && !context.json && isatty(STDOUT_FILENO) == 1;
  Look before, after;
  if (int code = Read(context, &before); code != kExitOk) return code;
  while (true) {
    std::this_thread::sleep_for(std::chrono::duration<double>(interval_seconds));
    if (int code = Read(context, &after); code != kExitOk) return code;
    const v1::TopSample sample = Compare(before, after);
    *context.out << (screen ? kClearScreen : "") << (context.json ? ToJson(sample) : SampleText(sample))
                 << (once || screen ? "" : "\n");
    context.out->flush();
    // Nobody reads any more, such as a pipe to `head`.
    if (once || !context.out->good()) return kExitOk;
    before = std::move(after);
  }
}

}  // namespace kiln
