#include "compiler/worker/sandbox_layer.h"

#include "absl/strings/str_cat.h"

namespace kiln {

SandboxLayer LayerOf(absl::string_view name, const absl::Status& status) {
  return {std::string(name), status.ok(), std::string(status.message())};
}

std::string LayerWord(const SandboxLayer& layer) {
  return layer.on ? layer.name : absl::StrCat(layer.name, "=", layer.why_not);
}

SandboxLayer ParseLayerWord(absl::string_view word) {
  const size_t end = word.find('=');
  if (end == absl::string_view::npos) return {std::string(word), true, ""};
  return {std::string(word.substr(0, end)), false, std::string(word.substr(end + 1))};
}

void TellLayers(const std::vector<SandboxLayer>& layers, v1::WorkerHello* hello) {
  for (const SandboxLayer& layer : layers) {
    v1::WorkerHello::Layer* told = hello->add_sandbox();
    told->set_name(layer.name);
    told->set_on(layer.on);
    told->set_why_not(layer.why_not);
  }
}

}  // namespace kiln
