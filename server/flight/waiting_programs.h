// Which stored programs run by defaults and wait for measurements of other daemons (Tuning.waits_for).
// Thread-safe; its functions return at once.
#pragma once

#include <string>

namespace kiln {

class WaitingPrograms {
 public:
  virtual ~WaitingPrograms() = default;

  // A variant that waits has been read from the store. True where what it waits for is there: then it is
  // served to gangs that have it, and to nobody else. Else it is watched from now on.
  virtual bool IsOutdated(const std::string& ns, const std::string& compile_key,
                          const std::string& variant_id) = 0;
  // A variant has been made by all that there is.
  virtual void Made(const std::string& compile_key, const std::string& variant_id) = 0;
};

}  // namespace kiln
