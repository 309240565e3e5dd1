#include "server/observe/log.h"

#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "server/server_limits.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

// %* of the pattern.
class Text : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& line) override {
    const std::string text = LogText({message.payload.data(), message.payload.size()});
    line.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<Text>(); }
};

}  // namespace

void SetUpLog() {
  auto logger = spdlog::stderr_logger_mt("kilnd");
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<Text>('*').set_pattern("%Y-%m-%dT%H:%M:%S.%e %P %l %*");
  logger->set_formatter(std::move(formatter));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(logger);
}

std::string LogText(absl::string_view text) {
  const bool cut = text.size() > kLogLineBytesMax;
  std::string line;
  for (const char c : text.substr(0, kLogLineBytesMax)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      line += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      absl::StrAppendFormat(&line, "\\x%02x", byte);
    } else {
      line += c;
    }
  }
  return cut ? line + " …" : line;
}

}  // namespace kiln
