// Answers Prometheus's scrapes by HTTP at /metrics, from threads of its own: two, and only where it is
// configured. There is neither authentication nor encryption; the configuration allows the loopback alone.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace prometheus {
class Collectable;
class Exposer;
}  // namespace prometheus

namespace kiln {

struct Measure {
  enum class Kind { kCounter, kGauge };  // a counter only grows
  std::string name;                      // of letters, digits and "_"
  std::string help;
  Kind kind = Kind::kCounter;
  double value = 0;
  std::optional<std::string> tenant;  // whose; then those of one name follow one another
};

class PrometheusListener {
 public:
  // `read` is called for each scrape, from any thread, until the listener ends. `address` is HOST:PORT; port
  // 0 picks one. UNAVAILABLE when it cannot be bound.
  using Read = std::function<std::vector<Measure>()>;
  static absl::StatusOr<std::unique_ptr<PrometheusListener>> Start(const std::string& address, Read read);
  ~PrometheusListener();

  // With the bound port.
  const std::string& address() const { return address_; }

 private:
  PrometheusListener() = default;

  std::string address_;
  // Shared with the exposer, which asks whether it still lives.
  std::shared_ptr<prometheus::Collectable> collectable_;
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace kiln
