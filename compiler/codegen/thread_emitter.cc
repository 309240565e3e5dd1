#include "compiler/codegen/thread_emitter.h"

#include "absl/strings/str_cat.h"
#include "compiler/codegen/member_entry.h"
#include "compiler/codegen/thread_gemm.h"
#include "compiler/codegen/thread_strip.h"
#include "compiler/codegen/thread_tile.h"
#include "compiler/schedule/thread_walk.h"
#include "compiler/support/kernel_abi.h"

namespace kiln {
namespace {

constexpr char kBodyName[] = "kiln_body";

}  // namespace

ThreadEmitter::ThreadEmitter(const v1::Kernel& kernel, const VectorTarget& target, llvm::Module* module)
    : k_(kernel, target, module),
      at_(&k_.b, k_.facts.ops().size()),
      b_(k_.b),
      chosen_(kernel.schedule().threads()),
      index_(&k_, &at_),
      failure_(&b_),
      ops_(&k_, &at_, &index_, &failure_),
      memory_(&k_, &at_, &index_),
      block_(&b_, chosen_.threads(), chosen_.has_rows() ? chosen_.rows().points_per_block() : 1),
      combine_(&k_, &at_, &block_, &point_),
      reductions_(&k_, &at_, &combine_),
      stages_(&k_, &at_, &ops_, &memory_, &reductions_, &combine_, &block_, &point_, &strip_sums_),
      points_(&k_, &at_, &stages_, &memory_, &block_, &point_) {
  at_.vector_lanes = chosen_.lanes();
  for (const uint32_t store : chosen_.rows().strips().stores()) {
    strip_sums_.push_back({&k_.StageOf(store), k_.facts.ops()[store], {}});
  }
}

GpuImage ThreadEmitter::Launch() const {
  GpuImage image;
  image.threads = ThreadsOfBlock(chosen_);
  image.points_per_block = chosen_.has_gemm() ? PointsOfGemmBlock(k_.facts, chosen_) : PointsOfBlock(chosen_);
  image.buffers = k_.kernel.buffers_size();
  image.symbols = k_.kernel.symbol_count();
  image.members = k_.kernel.schedule().members();
  for (int k = 0; k < k_.kernel.buffers_size() && k < 64; ++k) {
    if (k_.kernel.buffers(k).access() == v1::READ) image.stored &= ~(uint64_t{1} << k);
  }
  return image;
}

absl::Status ThreadEmitter::EmitBody() {
  if (!k_.facts.ExpressionsFit()) {
    return absl::UnimplementedError("unsupported: an index expression of too many terms");
  }
  EnterBody();
  Points();
  failure_.Trap();
  b_.CreateRet(b_.getInt32(KILN_OK));
  return k_.status;
}

absl::Status ThreadEmitter::EmitKernel() {
  absl::Status emitted = EmitBody();
  if (!emitted.ok()) return emitted;
  llvm::Function* entry = k_.kernel.schedule().members() > 0 ? AddMemberEntry(k_.kernel, b_.function())
                                                             : AddPlainEntry(b_.function());
  entry->setCallingConv(llvm::CallingConv::PTX_Kernel);
  entry->addFnAttr("nvvm.maxntid", absl::StrCat(ThreadsOfBlock(chosen_)));
  if (const uint32_t blocks = chosen_.gemm().blocks(); blocks > 1)
    entry->addFnAttr("nvvm.cluster_dim", absl::StrCat(blocks));
  if (const uint32_t blocks = chosen_.rows().strips().blocks(); blocks > 0)
    entry->addFnAttr("nvvm.minctasm", absl::StrCat(blocks));
  return absl::OkStatus();
}

void ThreadEmitter::EnterBody() {
  llvm::SmallVector<llvm::Type*, 16> parameters(k_.kernel.buffers_size(), b_.getPtrTy());
  parameters.append(k_.kernel.symbol_count(), b_.getInt64Ty());
  if (k_.kernel.schedule().members() > 0) parameters.append(2, b_.getInt64Ty());  // the block and how many
  auto* type = llvm::FunctionType::get(b_.getInt32Ty(), parameters, false);
  auto* function = llvm::Function::Create(type, llvm::GlobalValue::InternalLinkage, kBodyName, k_.module);
  function->addFnAttr(llvm::Attribute::AlwaysInline);
  block_.Enter(function, k_.kernel.schedule().members() > 0);
  b_.SetInsertPoint(llvm::BasicBlock::Create(b_.getContext(), "entry", function));

  for (int k = 0; k < k_.kernel.buffers_size(); ++k) k_.buffers.push_back(function->getArg(k));
  for (uint32_t k = 0; k < k_.kernel.symbol_count(); ++k) {
    k_.symbols.push_back(function->getArg(k_.kernel.buffers_size() + k));
  }
  memory_.Enter();
  index_.EmitExtents();
}

void ThreadEmitter::Points() {
  if (chosen_.has_gemm()) {
    ThreadGemm(&k_, &at_, &stages_, &memory_).Emit();
  } else if (chosen_.has_tile()) {
    ThreadTile(&k_, &at_, &stages_, &memory_, &block_, &points_).Emit();
  } else if (!strip_sums_.empty()) {
    ThreadStrip(&k_, &at_, &stages_, &memory_, &block_, &points_, &strip_sums_).Emit();
  } else {
    points_.Emit();
  }
}

}  // namespace kiln
