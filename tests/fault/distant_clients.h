// Processes at a distance from their kilnd, by mutual TLS and a wire that counts.
#pragma once

#include <stdio.h>
#include <sys/wait.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/fault/cut_proxy.h"
#include "tests/fault/upstream_daemons.h"

namespace kiln {

// A process whose words are read one by one.
class Running {
 public:
  explicit Running(const std::string& command) : output_(popen(command.c_str(), "r")) {}
  ~Running() {
    if (output_ != nullptr) pclose(output_);
  }
  // Empty at the end.
  std::string Word() {
    char line[1024];
    if (fgets(line, sizeof(line), output_) == nullptr) return "";
    const std::string word = line;
    return word.substr(0, word.find('\n'));
  }
  std::string All() {
    std::string all, word;
    while (!(word = Word()).empty()) absl::StrAppend(&all, word, "\n");
    return all;
  }
  int ExitCode() {
    const int status = pclose(std::exchange(output_, nullptr));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  FILE* output_;
};

class DistantClient : public UpstreamTlsDaemons {
 protected:
  explicit DistantClient(const std::string& worker = "") : farm_(Farm(), {}, worker, 1) {}

  std::string Files() const {
    return absl::StrCat(" ca=", directory_, "/ca.crt cert=", directory_, "/red.crt key=", directory_,
                        "/red.key");
  }
  std::string Calls(const std::string& mode, const std::string& more,
                    const std::string& caller = CALLER) const {
    return absl::StrCat(caller, " ", mode, " address=", wire_.address(), " call=", KILN_CALL, Files(), " ",
                        more);
  }

  TestDaemon farm_;
  CutProxy wire_{AddressOf(farm_)};
};

}  // namespace kiln
