// Which objects a manifest names: code and loop IR of its kernels, and the images of kernels of our own that
// measuring has chosen for gemms. What they give points into what they are given. Threads: pure functions.
#pragma once

#include <vector>

#include "kiln/v1/artifact.pb.h"

namespace kiln {

// Those that it has.
inline std::vector<const v1::ObjectRef*> ObjectsOf(const v1::ManifestKernel& kernel) {
  std::vector<const v1::ObjectRef*> objects;
  for (const v1::ObjectRef* object : {&kernel.object(), &kernel.loop_ir()}) {
    if (!object->digest().empty()) objects.push_back(object);
  }
  return objects;
}

// One may be there twice.
inline std::vector<const v1::ObjectRef*> ObjectsOf(const v1::Manifest& manifest) {
  std::vector<const v1::ObjectRef*> objects;
  for (const v1::ManifestKernel& kernel : manifest.kernels()) {
    for (const v1::ObjectRef* object : ObjectsOf(kernel)) objects.push_back(object);
  }
  for (const v1::Measurement& measured : manifest.tuning().measurements()) {
    const v1::ObjectRef& image = measured.winner().native().object();
    if (!image.digest().empty()) objects.push_back(&image);
  }
  return objects;
}

}  // namespace kiln
