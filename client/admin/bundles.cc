// kilnctl export, import and warm: bundles to and from files.
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/admin/ask.h"
#include "client/admin/json.h"
#include "client/admin/stall_watch.h"
#include "client/admin/text.h"
#include "client/client_limits.h"
#include "compiler/support/compiler_limits.h"

namespace kiln {
namespace {

struct CloseFile {
  void operator()(FILE* file) const { fclose(file); }
};
using File = std::unique_ptr<FILE, CloseFile>;

int Fail(const AdminContext& context, const std::string& path) {
  *context.error << "kilnctl: " << path << ": " << strerror(errno) << "\n";
  return kExitFailed;
}

int Silent(const AdminContext& context) {
  *context.error << "kilnctl: kilnd at " << context.address
                 << " was silent for longer than --timeout allows\n";
  return kExitUnreachable;
}

// One moving line, where somebody looks at it.
class Progress {
 public:
  Progress(const AdminContext& context, uint64_t total)
      : error_(context.error), total_(total), shown_(!context.json && isatty(STDERR_FILENO) != 0) {}
  ~Progress() {
    if (any_) *error_ << "\r\x1b[K" << std::flush;
  }
  void At(uint64_t bytes) {
    const auto now = std::chrono::steady_clock::now();
    if (!shown_ || now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    any_ = true;
    *error_ << "\r\x1b[K" << HumanBytes(bytes);
    if (total_ > 0) *error_ << " of " << HumanBytes(total_);
    *error_ << std::flush;
  }

 private:
  std::ostream* const error_;
  const uint64_t total_;
  const bool shown_;
  bool any_ = false;
  std::chrono::steady_clock::time_point last_;
};

// A file that is there when all of it is.
class NewFile {
 public:
  explicit NewFile(std::string path) : path_(std::move(path)), written_(path_ + ".XXXXXX") {
    const int descriptor = mkostemp(written_.data(), O_CLOEXEC);
    if (descriptor < 0) return;
    file_.reset(fdopen(descriptor, "w"));
  }
  ~NewFile() {
    if (file_ != nullptr) unlink(written_.c_str());
  }
  bool ok() const { return file_ != nullptr; }
  bool Write(const std::string& data) {
    return fwrite(data.data(), 1, data.size(), file_.get()) == data.size();
  }
  bool Keep() {
    if (fflush(file_.get()) != 0 || fsync(fileno(file_.get())) != 0) return false;
    if (rename(written_.c_str(), path_.c_str()) != 0) return false;
    file_ = nullptr;
    return true;
  }

 private:
  const std::string path_;
  std::string written_;
  File file_;
};

std::string CountsText(const v1::BundleCounts& counts) {
  return absl::StrCat(counts.programs(), counts.programs() == 1 ? " program, " : " programs, ",
                      counts.objects(), " objects, ", counts.kernels(), " kernels, ", counts.tuning_records(),
                      " tuning records");
}

int ReportExport(const AdminContext& context, const v1::ExportSummary& summary, const std::string& path) {
  if (context.json) {
    *context.out << ToJson(summary);
  } else {
    *context.out << CountsText(summary.counts()) << " of "
                 << Printable(absl::StrJoin(summary.namespaces(), ", ")) << " in " << path << " ("
                 << HumanBytes(summary.bytes()) << ")\n";
  }
  if (summary.missing() > 0) {
    *context.error << "kilnctl: " << summary.missing()
                   << " of the job's programs are not in it: evicted, removed, or not made\n";
  }
  if (summary.forgotten()) {
    *context.error << "kilnctl: the job used more programs than kilnd remembers; some are not in it\n";
  }
  return summary.missing() > 0 || summary.forgotten() ? kExitFailed : kExitOk;
}

int ReportImport(const AdminContext& context, const v1::ImportReply& reply) {
  if (context.json) {
    *context.out << ToJson(reply);
    return kExitOk;
  }
  Table table({"BUNDLE", ">NEW", ">THERE"});
  const auto row = [&](const char* name, uint64_t fresh, uint64_t there) {
    table.Add({name, absl::StrCat(fresh), absl::StrCat(there)});
  };
  row("programs", reply.fresh().programs(), reply.there().programs());
  row("objects", reply.fresh().objects(), reply.there().objects());
  row("kernels", reply.fresh().kernels(), reply.there().kernels());
  row("tuning records", reply.fresh().tuning_records(), reply.there().tuning_records());
  *context.out << table.ToString() << "of namespace " << Printable(absl::StrJoin(reply.namespaces(), ", "));
  if (!reply.job().empty()) *context.out << ", job " << Printable(reply.job());
  if (reply.pinned() > 0)
    *context.out << "; " << reply.pinned() << (reply.pinned() == 1 ? " program pinned" : " programs pinned");
  *context.out << "\n";
  return kExitOk;
}

}  // namespace

int RunExport(const AdminContext& context, const std::vector<std::string>& about, const std::string& tenant,
              bool every_match, const std::string& path) {
  NewFile file(path);
  if (!file.ok()) return Fail(context, path);
  v1::ExportRequest request;
  for (const std::string& word : about) request.add_about(word);
  request.set_tenant(tenant);
  request.set_every_match(every_match);
  auto stub = v1::Bundles::NewStub(context.channel);
  grpc::ClientContext call;
  StallWatch watch(&call, context.timeout_seconds);
  auto reader = stub->Export(&call, request);
  v1::BundleChunk chunk;
  v1::ExportSummary summary;
  uint64_t bytes = 0;
  {
    Progress progress(context, 0);
    while (reader->Read(&chunk)) {
      watch.Heard();
      if (!file.Write(chunk.data())) {
        call.TryCancel();
        return Fail(context, path);
      }
      bytes += chunk.data().size();
      progress.At(bytes);
      if (chunk.has_summary()) summary = chunk.summary();
    }
  }
  const grpc::Status status = reader->Finish();
  if (watch.stalled()) return Silent(context);
  if (const int code = ExitCodeOf(context, status); code != kExitOk) return code;
  if (!file.Keep()) return Fail(context, path);
  return ReportExport(context, summary, path);
}

int RunImport(const AdminContext& context, const std::string& path, const std::string& into, bool pin) {
  const File file(fopen(path.c_str(), "re"));
  struct stat facts;
  if (file == nullptr || fstat(fileno(file.get()), &facts) != 0) {
    Fail(context, path);
    return kExitUsage;
  }
  const uint64_t total = static_cast<uint64_t>(facts.st_size);
  auto stub = v1::Bundles::NewStub(context.channel);
  grpc::ClientContext call;
  StallWatch watch(&call, context.timeout_seconds);
  v1::ImportReply reply;
  auto writer = stub->Import(&call, &reply);
  v1::ImportRequest request;
  request.mutable_header()->set_bytes(total);
  request.mutable_header()->set_into(into);
  request.mutable_header()->set_pin(pin);
  bool taken = writer->Write(request);
  {
    Progress progress(context, total);
    std::string& chunk = *request.mutable_chunk();
    for (uint64_t sent = 0; taken && sent < total; sent += chunk.size()) {
      watch.Heard();
      chunk.resize(std::min<uint64_t>(kChunkBytesMax, total - sent));
      if (fread(chunk.data(), 1, chunk.size(), file.get()) != chunk.size()) {
        call.TryCancel();
        return Fail(context, path);
      }
      taken = writer->Write(request);
      progress.At(sent);
    }
  }
  writer->WritesDone();
  watch.Heard(static_cast<double>(total) / kImportBytesPerSecondMin);
  const grpc::Status status = writer->Finish();
  if (watch.stalled()) return Silent(context);
  if (const int code = ExitCodeOf(context, status); code != kExitOk) return code;
  return ReportImport(context, reply);
}

}  // namespace kiln
