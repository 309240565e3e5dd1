#include "client/runtime/kernels.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/runtime/cuda_kernel.h"
#include "client/runtime/interpreted_kernel.h"
#include "client/runtime/perf_map.h"
#include "compiler/image/flat_image.h"
#include "compiler/support/status_macros.h"

namespace kiln::runtime {
namespace {

class NativeKernel : public KernelRunner {
 public:
  NativeKernel(std::shared_ptr<const LoadedImages> images, size_t image)
      : images_(std::move(images)), entry_(images_->entry(image)) {}
  absl::Status Run(const KilnArgs& args, int64_t begin, int64_t end, uint32_t thread,
                   const CallContext&) const override {
    entry_(&args, begin, end, thread);
    return absl::OkStatus();
  }

 private:
  std::shared_ptr<const LoadedImages> images_;
  KilnKernel entry_;
};

absl::StatusOr<std::shared_ptr<const std::string>> Find(const ObjectMap& objects, const v1::ObjectRef& ref,
                                                        int kernel) {
  const auto found = objects.find(ref.digest());
  if (found == objects.end())
    return absl::DataLossError(absl::StrCat("the object of kernel ", kernel, " is missing"));
  return found->second;
}

}  // namespace

absl::StatusOr<uint64_t> KernelRunner::RunMembers(absl::Span<const LaunchMember> members,
                                                  const CallContext& call) const {
  uint64_t launches = 0;
  for (const LaunchMember& member : members) {
    if (member.units <= 0) continue;
    KILN_RETURN_IF_ERROR(Run(member.args, 0, member.units, 0, call));
    ++launches;
  }
  return launches;
}

absl::StatusOr<std::vector<bool>> ParseInterpretList(const std::string& text, size_t kernels) {
  std::vector<bool> chosen(kernels, text == "all");
  if (text.empty() || text == "all") return chosen;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    uint32_t index = 0;
    if (!absl::SimpleAtoi(part, &index)) {
      return absl::InvalidArgumentError(
          absl::StrCat("KILN_DEBUG_INTERPRET takes `all` or kernel numbers such as 0,3; not \"", text, "\""));
    }
    if (index < kernels) chosen[index] = true;
  }
  return chosen;
}

absl::StatusOr<std::vector<std::shared_ptr<const KernelRunner>>> LoadKernels(
    const v1::Manifest& manifest, const ObjectMap& objects, const std::vector<bool>& interpret) {
  std::vector<absl::string_view> images;
  std::vector<int> kernel_of_image;
  std::vector<std::shared_ptr<const KernelRunner>> runners(manifest.kernels_size());
  for (int k = 0; k < manifest.kernels_size(); ++k) {
    const v1::ManifestKernel& kernel = manifest.kernels(k);
    if (interpret[k]) {
      if (kernel.object().kind() == v1::GPU_IMAGE) {
        return absl::UnimplementedError(
            "KILN_DEBUG_INTERPRET: the interpreter does not reach a GPU's memory");
      }
      KILN_ASSIGN_OR_RETURN(auto loop_ir, Find(objects, kernel.loop_ir(), k));
      KILN_ASSIGN_OR_RETURN(runners[k], NewInterpretedKernel(*loop_ir));
      continue;
    }
    if (kernel.object().kind() == v1::GPU_IMAGE) {
      KILN_ASSIGN_OR_RETURN(auto image, Find(objects, kernel.object(), k));
      KILN_ASSIGN_OR_RETURN(runners[k], NewCudaKernel(*image));
      continue;
    }
    if (kernel.object().kind() != v1::FLAT_IMAGE) {
      return absl::UnimplementedError(absl::StrCat("kernel ", k, " has no code for this machine"));
    }
    KILN_ASSIGN_OR_RETURN(auto image, Find(objects, kernel.object(), k));
    images.push_back(*image);
    kernel_of_image.push_back(k);
  }
  if (images.empty()) return runners;
  KILN_ASSIGN_OR_RETURN(std::shared_ptr<const LoadedImages> loaded, LoadImages(images));
  for (size_t i = 0; i < images.size(); ++i) {
    AddToPerfMap(loaded->code(i), manifest.kernels(kernel_of_image[i]).notes().name());
    runners[kernel_of_image[i]] = std::make_shared<NativeKernel>(loaded, i);
  }
  return runners;
}

}  // namespace kiln::runtime
