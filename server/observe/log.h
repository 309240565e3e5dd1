// kilnd's log: one line an event on standard error, which `daemonize` may have turned into a file.
// What comes from clients and workers is in it: control characters are escaped, so that nobody writes
// another's line or to a terminal, and a line has a limit.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace kiln {

// Makes it the process's log. Call once, before there is a second thread.
void SetUpLog();

// As a line shows it: "\n" as two characters, other control characters as "\x1b"; cut at kLogLineBytesMax.
std::string LogText(absl::string_view text);

}  // namespace kiln
