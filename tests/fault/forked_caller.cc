// A process that has graphs compiled by libkiln and forks, as DataLoader and servers that fork their workers
// do:
//   forked_caller MODE NAME=VALUE…
// Each mode is a function below. Prints what became of each step, a word a line, and ends with 0 where it was
// as it has to be. A child that hangs is ended by its alarm.
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "kiln/client.h"
#include "kiln/run_count.h"
#include "tests/fault/caller_words.h"

namespace kiln {
namespace {

constexpr unsigned kHangSeconds = 60;

template <typename Work>
pid_t InChild(Work work) {
  const pid_t child = fork();
  if (child != 0) return child;
  alarm(kHangSeconds);
  _exit(work() ? 0 : 1);
}

bool IsGood(pid_t child) {
  int ended = -1;
  const bool good = waitpid(child, &ended, 0) == child && ended == 0;
  if (!good) fprintf(stderr, "%d ended with %d\n", child, ended);
  return good;
}

std::string ContentsOf(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Those kiln-calls that have this process's mark in their environment.
std::vector<pid_t> Programs() {
  const std::string mark = absl::StrCat("CALLER_MARK=", getenv("CALLER_MARK"));
  std::vector<pid_t> found;
  DIR* const all = opendir("/proc");
  for (const dirent* entry = readdir(all); entry != nullptr; entry = readdir(all)) {
    const std::string place = absl::StrCat("/proc/", entry->d_name);
    if (ContentsOf(place + "/comm") != "kiln-call\n") continue;
    for (const absl::string_view word : absl::StrSplit(ContentsOf(place + "/environ"), '\0')) {
      if (word == mark) found.push_back(atoi(entry->d_name));
    }
  }
  closedir(all);
  return found;
}
// Of the programs that start from now on.
void Mark() { setenv("CALLER_MARK", absl::StrCat(getpid()).c_str(), /*overwrite=*/1); }
// Some end a moment after they are no longer needed.
bool AreSoon(size_t count, absl::Duration limit = absl::Seconds(5)) {
  const absl::Time end = absl::Now() + limit;
  while (Programs().size() != count && absl::Now() < end) absl::SleepFor(absl::Milliseconds(10));
  return Programs().size() == count;
}

void KillPrograms() {
  for (const pid_t program : Programs()) kill(program, SIGKILL);
  AreSoon(0);
}

size_t Threads() {
  size_t count = 0;
  DIR* const all = opendir("/proc/self/task");
  for (const dirent* entry = readdir(all); entry != nullptr; entry = readdir(all)) {
    if (entry->d_name[0] != '.') ++count;
  }
  closedir(all);
  return count;
}

class Caller {
 public:
  Caller(int argc, char** argv) : words_(argc, argv), client_(NewClient(words_.Options())) { Mark(); }

  int Run(const std::string& mode) {
    const std::pair<const char*, bool (Caller::*)()> modes[] = {
        {"fork", &Caller::Fork},           {"before", &Caller::Before}, {"family", &Caller::Family},
        {"threads", &Caller::Several},     {"cancel", &Caller::Cancel}, {"missing", &Caller::Missing},
        {"killed", &Caller::Killed},       {"exits", &Caller::Exits},   {"idle", &Caller::Idle},
        {"orphan", &Caller::Orphan},       {"away", &Caller::Away},     {"report", &Caller::Report},
        {"within", &Caller::KilledWithin}, {"left", &Caller::Left},     {"cost", &Caller::Cost}};
    for (const auto& [name, run] : modes) {
      if (mode == name) return (this->*run)() ? 0 : 1;
    }
    return 2;
  }

 private:
  absl::Status Get(const std::string& script, Cancellation* cancellation = nullptr) {
    return words_.Get(*client_, script, cancellation);
  }
  bool Gets(const std::string& script) { return Get(script).ok(); }

  // Some compiles of a process after a fork.
  bool Five(const std::string& whose) {
    bool good = true;
    for (int i = 0; i < 5; ++i) good = Gets(absl::StrCat("name of ", whose, " ", i)) && good;
    return good;
  }

  // Parent and child go on at once, between calls and within one.
  bool Fork() {
    if (!Gets("name before")) return false;
    for (int round = 0; round < 3; ++round) {
      const pid_t child = InChild([&] { return Five(absl::StrCat("child ", round)); });
      const bool here = Five(absl::StrCat("parent ", round));
      if (!IsGood(child) || !here) return false;
    }
    Say("apart");
    absl::Status slow;
    std::thread calls([&] { slow = Get("name slow\nsleep_ms 1500"); });
    absl::SleepFor(absl::Milliseconds(500));
    const bool good = IsGood(InChild([&] { return Gets("name meanwhile"); }));
    calls.join();
    if (!good || !slow.ok()) return false;
    Say("within");
    return IsGood(InChild([&] { return Five("child after"); })) && Five("parent after");
  }

  // The control: who was forked before any call has gRPC of its own, and no program.
  bool Before() {
    const auto calls_by_itself = [&] {
      Mark();
      return Gets("name child") && Programs().empty();
    };
    const auto calls_by_a_program = [&] {
      Mark();
      return Gets("name grandchild") && Programs().size() == 1 && Threads() == 1;
    };
    return IsGood(InChild([&] { return calls_by_itself() && IsGood(InChild(calls_by_a_program)); })) &&
           Gets("name parent") && Programs().empty() && IsGood(InChild(calls_by_a_program));
  }

  // A child's child has a program of its own, and those of parent and child go on.
  bool Family() {
    if (!Gets("name parent")) return false;
    const bool good = IsGood(InChild([&] {
      if (!Gets("name child")) return false;
      return IsGood(InChild([&] { return Gets("name grandchild") && Programs().size() == 2; })) &&
             Gets("name child again") && AreSoon(1);
    }));
    return good && Gets("name parent again");
  }

  bool Several() {
    if (!Gets("name parent")) return false;
    return IsGood(InChild([&] {
      std::vector<std::thread> threads;
      std::atomic<int> good{0};
      for (int i = 0; i < 6; ++i) {
        threads.emplace_back([&, i] { good += Gets(absl::StrCat("name thread ", i, "\nsleep_ms 300")); });
      }
      for (std::thread& thread : threads) thread.join();
      return good == 6 && AreSoon(1) && Gets("name after") && AreSoon(1);
    }));
  }

  bool Cancel() {
    if (!Gets("name parent")) return false;
    return IsGood(InChild([&] {
      if (!Gets("name child")) return false;
      Cancellation cancellation;
      std::thread canceller([&] {
        absl::SleepFor(absl::Milliseconds(700));
        cancellation.Cancel();
      });
      const absl::Time begin = absl::Now();
      const absl::Status told = Get("name long\nsleep_ms 30000", &cancellation);
      canceller.join();
      if (!absl::IsCancelled(told) || absl::Now() - begin > absl::Seconds(5)) return false;
      Cancellation before;
      before.Cancel();
      if (!absl::IsCancelled(Get("name never", &before))) return false;
      Say("cancelled");
      return AreSoon(0) && Gets("name child again");
    }));
  }

  bool Missing() {
    if (!Gets("name parent")) return false;
    return IsGood(InChild([&] {
             const absl::Status told = Get("name child");
             return absl::IsFailedPrecondition(told) && absl::StrContains(told.message(), "install kiln") &&
                    absl::StrContains(told.message(), "forkserver");
           })) &&
           Gets("name parent again");
  }

  // A program that ended between two calls.
  bool Killed() {
    if (!Gets("name parent")) return false;
    return IsGood(InChild([&] {
      for (int i = 0; i < 3; ++i) {
        if (!Gets(absl::StrCat("name child ", i)) || Programs().size() != 1) return false;
        KillPrograms();
      }
      return Gets("name child again");
    }));
  }

  // Within a call: one that had served before is replaced, its successor's end is told.
  bool KilledWithin() {
    if (!Gets("name parent")) return false;
    return IsGood(InChild([&] {
      for (const bool anew : {true, false}) {
        if (!anew && !Gets("name before")) return false;
        std::thread killer([&] {
          AreSoon(1);
          absl::SleepFor(absl::Milliseconds(700));  // into the call
          KillPrograms();
        });
        const absl::Status told = Get(absl::StrCat("name long ", anew, "\nsleep_ms 2000"));
        killer.join();
        const bool said = absl::IsUnavailable(told) && absl::StrContains(told.message(), "kiln-call");
        if (anew ? !said : !told.ok()) return false;
      }
      return Gets("name after");
    }));
  }

  // Children that end as main does, with destructors.
  bool Exits() {
    if (!Gets("name parent")) return false;
    for (int round = 0; round < 3; ++round) {
      const pid_t child = fork();
      if (child == 0) {
        alarm(kHangSeconds);
        const bool good = Gets(absl::StrCat("name child ", round));
        CountRun();
        client_->ReportUse(absl::Seconds(20));
        client_ = NewClient(words_.Options());
        const bool again = Gets(absl::StrCat("name other client ", round));
        client_ = nullptr;
        exit(good && again ? 0 : 1);
      }
      if (!IsGood(child) || !Five(absl::StrCat("parent ", round))) return false;
    }
    return true;
  }

  bool Idle() {
    if (!Gets("name parent")) return false;
    return IsGood(InChild([&] {
      if (!Gets("name child")) return false;
      return AreSoon(0) && Gets("name child again");
    }));
  }

  // A child that is killed within a call takes its program along, and what that waits for.
  bool Orphan() {
    if (!Gets("name parent")) return false;
    const pid_t child = InChild([&] { return Gets("name long\nsleep_ms 30000"); });
    const bool was_there = AreSoon(1);
    absl::SleepFor(absl::Seconds(1));  // into the call
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    Say("killed");
    return was_there && AreSoon(0) && Gets("name parent again");
  }

  // A parent that is killed within a call, while a child lives that has its connection by memory.
  bool Left() {
    if (!Gets("name parent")) return false;
    std::thread calls([&] { Gets("name long\nsleep_ms 60000"); });
    absl::SleepFor(absl::Milliseconds(700));
    const pid_t child = InChild([&] {
      absl::SleepFor(absl::Seconds(50));
      return true;
    });
    Say(absl::StrCat(child));
    raise(SIGKILL);
    calls.join();
    return false;
  }

  // Nobody waits for a service that is away at each graph.
  bool Away() {
    if (!Gets("name parent")) return false;
    Say("there");
    absl::SleepFor(absl::Seconds(words_.Number("sleep")));
    return IsGood(InChild([&] {
      for (int i = 0; i < 2; ++i) {
        if (!absl::IsUnavailable(Get("name child"))) return false;
      }
      const absl::Time begin = absl::Now();
      const absl::Status told = Get("name child");
      return absl::IsUnavailable(told) && absl::StrContains(told.message(), "lately") &&
             absl::Now() - begin < absl::Seconds(1);
    }));
  }

  // Runs of a child, once with a program that is there, once with none.
  bool Report() {
    if (!Gets("name parent")) return false;
    CountRun(100);
    const auto reports = [&](bool calls) {
      if (calls && !Gets("name child")) return false;
      CountRun(10);
      client_->ReportUse(absl::Seconds(20));
      return AreSoon(0);
    };
    if (!IsGood(InChild([&] { return reports(true); }))) return false;
    if (!IsGood(InChild([&] { return reports(false); }))) return false;
    Say("told");
    return IsGood(InChild([&] {
      CountRun();
      const absl::Time begin = absl::Now();
      client_->ReportUse(absl::Milliseconds(50));
      return absl::Now() - begin < absl::Seconds(2);
    }));
  }

  // Milliseconds of a process's first and second compile, and of a hit.
  bool Cost() {
    const auto took = [&](const std::string& who) {
      for (const std::string what : {"first", "second", "third", "third"}) {
        const absl::Time begin = absl::Now();
        if (!Gets(absl::StrCat("name ", who, " ", what))) return false;
        Say(absl::StrCat(who, " ", what, " ", absl::ToDoubleMilliseconds(absl::Now() - begin)));
      }
      return true;
    };
    return took("parent") && IsGood(InChild([&] { return took("child"); }));
  }

  const CallerWords words_;
  std::unique_ptr<Client> client_;
};

}  // namespace
}  // namespace kiln

int main(int argc, char** argv) { return argc < 2 ? 2 : kiln::Caller(argc, argv).Run(argv[1]); }
