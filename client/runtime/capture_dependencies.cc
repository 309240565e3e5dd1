#include "client/runtime/capture_dependencies.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "client/client_limits.h"
#include "compiler/support/status_macros.h"

namespace kiln::runtime {
namespace {

bool Has(const std::vector<uint64_t>& bits, size_t at) {
  return at / 64 < bits.size() && (bits[at / 64] >> (at % 64) & 1) != 0;
}

void Put(std::vector<uint64_t>& bits, size_t at) {
  if (bits.size() <= at / 64) bits.resize(at / 64 + 1);
  bits[at / 64] |= uint64_t{1} << (at % 64);
}

void PutAll(std::vector<uint64_t>& bits, const std::vector<uint64_t>& others) {
  if (bits.size() < others.size()) bits.resize(others.size());
  for (size_t i = 0; i < others.size(); ++i) bits[i] |= others[i];
}

}  // namespace

CaptureDependencies::CaptureDependencies(Capture& capture) : capture_(capture) {
  serial_ = !capture_.Get(root_);
}

CaptureDependencies::~CaptureDependencies() { Fence().IgnoreError(); }

absl::Status CaptureDependencies::Begin(absl::Span<const MemoryRange> ranges) {
  open_ = true;
  fenced_ = false;
  if (serial_) return absl::OkStatus();
  int64_t bytes = 0;
  for (const MemoryRange& range : ranges) bytes += range.bytes;
  if (bytes >= kAloneBytes || steps_.size() >= kCaptureStepsMax) return Fence();
  steps_.emplace_back();
  std::set<uint32_t> waits;
  for (const MemoryRange& range : ranges) Collect(range, waits);
  std::vector<Node> nodes = waits.empty() ? root_ : WaitFor(waits);
  if (capture_.Set(nodes)) return absl::OkStatus();
  serial_ = true;
  KILN_RETURN_IF_ERROR(Add(std::move(nodes)));
  return Fence();
}

absl::Status CaptureDependencies::Touch(const MemoryRange& range) {
  if (serial_ || fenced_ || !open_) return absl::OkStatus();
  std::set<uint32_t> waits;
  Collect(range, waits);
  return Add(WaitFor(waits));
}

// To what the stream's next node waits for.
absl::Status CaptureDependencies::Add(std::vector<Node> nodes) {
  if (nodes.empty()) return absl::OkStatus();
  std::vector<Node> known;
  if (!capture_.Get(known)) serial_ = true;
  std::erase_if(nodes, [&](Node node) { return std::count(known.begin(), known.end(), node) > 0; });
  if (nodes.empty() || capture_.Add(nodes)) return absl::OkStatus();
  return absl::InternalError("the CUDA driver takes no dependencies of a node");
}

absl::Status CaptureDependencies::Fence() {
  fenced_ = true;
  KILN_RETURN_IF_ERROR(Add(Leaves()));
  steps_.clear();
  memory_.clear();
  root_.clear();
  if (!serial_ && !capture_.Get(root_)) serial_ = true;
  return absl::OkStatus();
}

absl::Status CaptureDependencies::End() {
  open_ = false;
  std::vector<Node> nodes;
  if (!serial_ && !capture_.Get(nodes)) serial_ = true;
  // In a row now: what the step recorded is what the next node waits for, and so is all else.
  if (serial_) return Fence();
  if (fenced_) {
    root_ = std::move(nodes);
  } else {
    steps_.back().last = std::move(nodes);
  }
  return absl::OkStatus();
}

// Adds the earlier steps that the current one has to wait for, and notes its access.
void CaptureDependencies::Collect(const MemoryRange& range, std::set<uint32_t>& steps) {
  if (range.bytes <= 0 || range.data == nullptr) return;
  const auto current = static_cast<uint32_t>(steps_.size() - 1);
  const auto begin = reinterpret_cast<uintptr_t>(range.data);
  const uintptr_t end = begin + static_cast<uintptr_t>(range.bytes);
  SplitAt(begin);
  SplitAt(end);
  const auto wait = [&](uint32_t step) {
    if (step != current) steps.insert(step);
  };
  for (uintptr_t at = begin; at < end;) {
    auto found = memory_.lower_bound(at);
    if (found == memory_.end() || found->first > at) {
      const uintptr_t next = found == memory_.end() ? end : std::min(end, found->first);
      found = memory_.emplace(at, Bytes{next, -1, {}}).first;
    }
    Bytes& bytes = found->second;
    if (bytes.writer >= 0) wait(static_cast<uint32_t>(bytes.writer));
    if (range.written) {
      for (const uint32_t reader : bytes.readers) wait(reader);
      bytes.writer = current;
      bytes.readers.clear();
    } else if (bytes.readers.empty() || bytes.readers.back() != current) {
      bytes.readers.push_back(current);
    }
    at = bytes.end;
  }
}

std::map<uintptr_t, CaptureDependencies::Bytes>::iterator CaptureDependencies::SplitAt(uintptr_t address) {
  auto after = memory_.lower_bound(address);
  if (after == memory_.begin() || (after != memory_.end() && after->first == address)) return after;
  const auto holds = std::prev(after);
  if (holds->second.end <= address) return after;
  Bytes rest = holds->second;
  holds->second.end = address;
  return memory_.emplace(address, std::move(rest)).first;
}

std::vector<CaptureDependencies::Node> CaptureDependencies::WaitFor(const std::set<uint32_t>& steps) {
  Step& current = steps_.back();
  std::vector<Node> nodes;
  // A step only waits for earlier ones, so the latest of them comes first.
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (Has(current.before, *step)) continue;
    Step& other = steps_[*step];
    other.awaited = true;
    Put(current.before, *step);
    PutAll(current.before, other.before);
    nodes.insert(nodes.end(), other.last.begin(), other.last.end());
  }
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  return nodes;
}

std::vector<CaptureDependencies::Node> CaptureDependencies::Leaves() const {
  std::vector<Node> nodes;
  for (const Step& step : steps_) {
    if (!step.awaited) nodes.insert(nodes.end(), step.last.begin(), step.last.end());
  }
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  return nodes;
}

}  // namespace kiln::runtime
