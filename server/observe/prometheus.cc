#include "server/observe/prometheus.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "prometheus/collectable.h"
#include "prometheus/exposer.h"
#include "prometheus/metric_family.h"

namespace kiln {
namespace {

class Measures : public prometheus::Collectable {
 public:
  explicit Measures(PrometheusListener::Read read) : read_(std::move(read)) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    std::vector<prometheus::MetricFamily> families;
    for (Measure& measure : read_()) {
      if (families.empty() || families.back().name != measure.name) {
        families.emplace_back();
        families.back().name = std::move(measure.name);
        families.back().help = std::move(measure.help);
        families.back().type = measure.kind == Measure::Kind::kCounter ? prometheus::MetricType::Counter
                                                                       : prometheus::MetricType::Gauge;
      }
      prometheus::ClientMetric& metric = families.back().metric.emplace_back();
      if (measure.tenant.has_value()) metric.label.push_back({"tenant", *std::move(measure.tenant)});
      if (measure.kind == Measure::Kind::kCounter) {
        metric.counter.value = measure.value;
      } else {
        metric.gauge.value = measure.value;
      }
    }
    return families;
  }

 private:
  const PrometheusListener::Read read_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PrometheusListener>> PrometheusListener::Start(const std::string& address,
                                                                              Read read) {
  std::unique_ptr<PrometheusListener> listener(new PrometheusListener);
  listener->collectable_ = std::make_shared<Measures>(std::move(read));
  try {
    listener->exposer_ = std::make_unique<prometheus::Exposer>(address, /*num_threads=*/1);
    listener->exposer_->RegisterCollectable(listener->collectable_);
    const std::vector<int> ports = listener->exposer_->GetListeningPorts();
    if (ports.empty()) return absl::UnavailableError(absl::StrCat("metrics: cannot listen on ", address));
    listener->address_ = absl::StrCat(address.substr(0, address.rfind(':')), ":", ports[0]);
  } catch (const std::exception& error) {  // the library's only way to say so
    return absl::UnavailableError(
        absl::StrCat("metrics: cannot listen on ", address, " (in use?): ", error.what()));
  }
  return listener;
}

PrometheusListener::~PrometheusListener() = default;

}  // namespace kiln
