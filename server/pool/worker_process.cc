#include "server/pool/worker_process.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "compiler/support/status_macros.h"
#include "compiler/worker/sandbox.h"
#include "server/server_limits.h"

namespace kiln {

absl::Status StatusOf(const v1::WorkerError& error) {
  absl::StatusCode code = static_cast<absl::StatusCode>(error.code());
  if (error.code() <= 0 || error.code() > 16) code = absl::StatusCode::kInternal;
  return absl::Status(code, absl::string_view(error.message()).substr(0, kWorkerErrorBytesMax));
}

absl::StatusOr<std::unique_ptr<WorkerProcess>> WorkerProcess::Spawn(Zygote* zygote, MonotonicTime deadline) {
  KILN_ASSIGN_OR_RETURN(Zygote::Worker worker, zygote->Spawn());
  std::unique_ptr<WorkerProcess> process(new WorkerProcess(zygote, worker));
  absl::StatusOr<v1::Frame> frame = process->channel_->Read(FrameWait{deadline, nullptr});
  if (!frame.ok()) {
    const std::string end = process->Stop().text;
    return absl::UnavailableError(
        absl::StrCat("a new worker said nothing (", end, "): ", frame.status().message()));
  }
  if (!frame->has_hello()) return absl::DataLossError("a new worker's first frame is no hello");
  process->hello_ = std::move(*frame->mutable_hello());
  return process;
}

WorkerProcess::~WorkerProcess() { Stop(); }

bool WorkerProcess::Alive() const {
  if (pid_ < 0) return false;
  pollfd entry{channel_->fd(), POLLIN, 0};
  return poll(&entry, 1, 0) == 0;
}

uint64_t WorkerProcess::ResidentBytes() const {
  std::ifstream statm(absl::StrCat("/proc/", pid_, "/statm"));
  uint64_t pages = 0, resident = 0;
  if (!(statm >> pages >> resident)) return 0;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

absl::StatusOr<v1::Frame> WorkerProcess::Call(v1::Frame request, const FrameWait& wait) {
  if (pid_ < 0) return absl::UnavailableError("the worker has ended");
  request.set_id(++last_id_);
  KILN_RETURN_IF_ERROR(channel_->Write(request, wait));
  KILN_ASSIGN_OR_RETURN(v1::Frame reply, channel_->Read(wait));
  if (reply.id() != last_id_) return absl::DataLossError("an answer to another question");
  return reply;
}

WorkerProcess::End WorkerProcess::Stop() {
  if (pid_ < 0) return {"ended before"};
  channel_ = nullptr;
  absl::StatusOr<int> status = zygote_->Reap(pid_);
  pid_ = -1;
  if (!status.ok()) return {std::string(status.status().message())};
  return {DescribeWaitStatus(*status), WIFSIGNALED(*status) && WTERMSIG(*status) == SIGKILL,
          WIFEXITED(*status) && WEXITSTATUS(*status) == kExitOutOfMemory};
}

}  // namespace kiln
