// A store_writer (store_writer.cc) as an object: a process that has never shared memory with the test, since
// RocksDB's threads do not survive a fork.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace kiln {

class StoreProcess {
 public:
  explicit StoreProcess(std::vector<std::string> words) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    words.insert(words.begin(), STORE_WRITER);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      const int nowhere = open("/dev/null", O_WRONLY);  // a library may say why it ends
      dup2(nowhere, STDERR_FILENO);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(ends[1]);
    told_ = ends[0];
  }
  StoreProcess(const StoreProcess&) = delete;
  StoreProcess& operator=(const StoreProcess&) = delete;
  ~StoreProcess() {
    close(told_);
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  // The next number; false when the process has ended.
  bool Next(uint64_t* number) { return read(told_, number, sizeof(*number)) == sizeof(*number); }
  void Kill() { kill(pid_, SIGKILL); }
  // Its wait status, after all that it told has been read.
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_ = -1;
  int told_ = -1;
};

}  // namespace kiln
