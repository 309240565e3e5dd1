#include "server/build/artifact.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "compiler/graph/guards.h"
#include "compiler/graph/key.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "compiler/support/zstd.h"

namespace kiln {
namespace {

absl::Status BadPlan(absl::string_view what) {
  return absl::InternalError(absl::StrCat("the plan is inconsistent: ", what));
}

using ObjectsByDigest = absl::flat_hash_map<std::string, EntryValue>;

v1::ObjectRef AddObject(v1::ObjectKind kind, const std::string& raw, ObjectsByDigest* objects) {
  v1::ObjectRef ref;
  EntryValue packed = MakeEntryValue(ZstdCompress(raw));
  ref.set_digest(Sha256(raw));
  ref.set_kind(kind);
  ref.set_raw_size(raw.size());
  ref.set_packed_size(packed->size());
  objects->emplace(ref.digest(), std::move(packed));
  return ref;
}

// The tuning as a manifest has it: records of the store hold code, a manifest names it.
v1::Tuning WithImagesAsObjects(v1::Tuning tuning, ObjectsByDigest* objects) {
  for (v1::Measurement& measured : *tuning.mutable_measurements()) {
    if (!measured.winner().has_native()) continue;
    v1::NativeKernel& native = *measured.mutable_winner()->mutable_native();
    *native.mutable_object() = AddObject(v1::GPU_IMAGE, native.image(), objects);
    native.clear_image();
  }
  return tuning;
}

void AddEntries(const ObjectsByDigest& objects, Artifact* artifact) {
  for (const auto& [digest, packed] : objects) {
    if (artifact->objects.emplace(digest, packed).second) {
      artifact->entries.push_back({{EntryKind::kObject, digest}, packed});
    }
  }
}

absl::Status CheckBuffer(const v1::Program& program, uint64_t buffer) {
  return buffer < program.buffers_size() ? absl::OkStatus() : BadPlan("a step names no buffer");
}

absl::Status CheckStep(const v1::PlanReply& plan, const v1::Step& step) {
  const v1::Program& program = plan.program();
  switch (step.kind_case()) {
    case v1::Step::kLaunch:
      if (step.launch().kernel() >= plan.kernels_size()) return BadPlan("a launch names no kernel");
      for (uint32_t buffer : step.launch().buffers()) KILN_RETURN_IF_ERROR(CheckBuffer(program, buffer));
      return absl::OkStatus();
    case v1::Step::kLaunchGroup:
      if (step.launch_group().kernel() >= plan.kernels_size()) return BadPlan("a launch names no kernel");
      for (const v1::LaunchGroup::Member& member : step.launch_group().members()) {
        for (uint32_t buffer : member.buffers()) KILN_RETURN_IF_ERROR(CheckBuffer(program, buffer));
      }
      return absl::OkStatus();
    case v1::Step::kCall:
      if (step.call().target().empty()) return BadPlan("a call without an operator");
      for (int64_t buffer : step.call().results()) {
        if (buffer < -1) return BadPlan("a call's result");
        if (buffer >= 0) KILN_RETURN_IF_ERROR(CheckBuffer(program, buffer));
      }
      return absl::OkStatus();
    case v1::Step::kAlloc:
      if (step.alloc().reuse() >= 0) KILN_RETURN_IF_ERROR(CheckBuffer(program, step.alloc().reuse()));
      return CheckBuffer(program, step.alloc().buffer());
    case v1::Step::kFree: return CheckBuffer(program, step.free().buffer());
    case v1::Step::kView: return CheckBuffer(program, step.view().buffer());
    case v1::Step::kSeeds: return CheckBuffer(program, step.seeds().buffer());
    case v1::Step::kLet:
    case v1::Step::kCheck: return absl::OkStatus();
    case v1::Step::KIND_NOT_SET: break;
  }
  return BadPlan("a step of no kind");
}

}  // namespace

absl::Status CheckPlan(const v1::PlanReply& plan) {
  if (plan.program().format_version() != kProgramFormatVersion) return BadPlan("program format");
  for (const v1::PlannedKernel& kernel : plan.kernels()) {
    if (kernel.kernel().empty()) return BadPlan("an empty kernel");
    if (kernel.notes().sources_size() > 0) return BadPlan("one caller's lines in what all callers get");
  }
  for (const v1::Step& step : plan.program().steps()) KILN_RETURN_IF_ERROR(CheckStep(plan, step));
  for (const v1::ProgramOutput& output : plan.program().outputs()) {
    if (output.has_buffer()) KILN_RETURN_IF_ERROR(CheckBuffer(plan.program(), output.buffer()));
  }
  if (absl::Status guards = CheckGuards(plan.guards()); !guards.ok()) return BadPlan(guards.message());
  return absl::OkStatus();
}

bool IsPlainName(absl::string_view name) {
  if (name.empty() || name.size() > kStringMax) return false;
  bool part_begins = true;
  for (const char c : name) {
    if (part_begins && (c == '.' || c == '/')) return false;
    if (!absl::ascii_isalnum(c) && c != '_' && c != '-' && c != '.' && c != '/') return false;
    part_begins = c == '/';
  }
  return !part_begins;
}

absl::StatusOr<EmittedKernel> PackKernel(const std::string& kernel_key, const std::string& kernel,
                                         const v1::EmitReply& reply) {
  if (reply.kind() != v1::FLAT_IMAGE && reply.kind() != v1::GPU_IMAGE && reply.kind() != v1::LOOP_IR) {
    return absl::InternalError("an emitted object of no known kind");
  }
  if (reply.object().empty()) return absl::InternalError("an emitted object without bytes");
  EmittedKernel emitted;
  emitted.record.set_kernel_key(kernel_key);
  *emitted.record.mutable_loop_ir() = AddObject(v1::LOOP_IR, kernel, &emitted.objects);
  *emitted.record.mutable_object() = AddObject(reply.kind(), reply.object(), &emitted.objects);
  return emitted;
}

Artifact AssembleArtifact(const ArtifactIngredients& ingredients, v1::PlanReply plan) {
  Artifact artifact;
  artifact.ns = ingredients.ns;
  artifact.compile_key = ingredients.compile_key;
  artifact.guards = plan.guards();
  v1::Manifest manifest;
  std::string tuning_digest;
  if (ingredients.tuning != nullptr) {
    ObjectsByDigest images;
    *manifest.mutable_tuning() = WithImagesAsObjects(*ingredients.tuning, &images);
    AddEntries(images, &artifact);
    tuning_digest = Sha256(SerializeDeterministic(manifest.tuning()));
  }
  artifact.variant_id = VariantId(ingredients.compile_key, plan.guards(), tuning_digest);

  manifest.set_format_version(kProgramFormatVersion);
  manifest.set_namespace_(ingredients.ns);
  manifest.set_compile_key(ingredients.compile_key);
  manifest.set_variant_id(artifact.variant_id);
  manifest.set_request_key(ingredients.request_key);
  *manifest.mutable_target() = ingredients.target;
  *manifest.mutable_program() = std::move(*plan.mutable_program());
  *manifest.mutable_guards() = std::move(*plan.mutable_guards());
  *manifest.mutable_byte_exprs() = std::move(*plan.mutable_byte_exprs());
  *manifest.mutable_statistics() = std::move(*plan.mutable_statistics());
  // Times differ from run to run; they stand in the RequestRecord.
  manifest.mutable_statistics()->clear_plan_seconds();
  manifest.mutable_statistics()->clear_emit_seconds();
  manifest.mutable_statistics()->clear_queue_seconds();
  for (size_t i = 0; i < ingredients.kernels.size(); ++i) {
    const EmittedKernel& emitted = ingredients.kernels[i];
    v1::PlannedKernel& planned = *plan.mutable_kernels(i);
    v1::ManifestKernel* kernel = manifest.add_kernels();
    *kernel = emitted.record;
    *kernel->mutable_notes() = std::move(*planned.mutable_notes());
    *kernel->mutable_bytes_read() = std::move(*planned.mutable_bytes_read());
    *kernel->mutable_bytes_written() = std::move(*planned.mutable_bytes_written());
    if (emitted.objects.empty()) continue;
    AddEntries(emitted.objects, &artifact);
    artifact.entries.push_back(
        ingredients.signatures->SignEntry({EntryKind::kKernel, emitted.record.kernel_key()}, ingredients.ns,
                                          SerializeDeterministic(emitted.record)));
  }
  const EntryId id = {EntryKind::kManifest, ManifestEntryKey(ingredients.compile_key, artifact.variant_id)};
  artifact.signed_manifest = ingredients.signatures->SignManifest(manifest);
  artifact.entries.push_back(
      {RequestRecordId(ingredients.compile_key), MakeEntryValue(ingredients.notes_record)});
  artifact.entries.push_back(
      {id, MakeEntryValue(SerializeDeterministic(artifact.signed_manifest)), ingredients.rebuild_ms});
  return artifact;
}

}  // namespace kiln
