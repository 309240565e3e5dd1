// What a daemon is attacked with, on a unix socket, from one process of one thread:
//   service_attack messages|silent|dribble|resets|pings --socket PATH --seconds S [--connections N] …
//     messages  each connection sends a message of --bytes and begins anew
//     silent    each connection stays open and says nothing
//     dribble   each says what HTTP/2 begins with, a byte a second
//     resets    --rate calls a second, each reset at once
//     pings     --rate pings a second
// A connection that is closed is reopened. Prints one line of JSON when its time is over: what was done,
// the connections closed and not to be had, and its own processor seconds.
#include <poll.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/fault/raw_http2.h"

namespace kiln {
namespace {

using Clock = std::chrono::steady_clock;
constexpr char kMethod[] = "/kiln.v1.Compiler/Compile";

struct Options {
  std::string socket;
  double seconds = 5;
  size_t connections = 8;
  size_t bytes = 256u << 20;
  double rate = 5000;
};

struct Tally {
  size_t done = 0;  // messages' bytes, calls, pings, or bytes dribbled
  size_t closed = 0;
  size_t refused = 0;
};

// One of the attack's places: a connection, and after it the next.
struct Place {
  std::unique_ptr<RawConnection> connection;
  uint32_t stream = 1;
  size_t said = 0;

  bool Open(const Options& options, bool hello, Tally* tally) {
    if (connection != nullptr) return true;
    connection = RawConnection::Open(options.socket);
    stream = 1;
    said = 0;
    if (connection != nullptr && (!hello || connection->Send(Http2Hello()))) return true;
    connection = nullptr;
    ++tally->refused;
    return false;
  }
  void Close(Tally* tally) {
    connection = nullptr;
    ++tally->closed;
  }
  // Throws away what has come.
  void Drain(Tally* tally) {
    if (connection == nullptr) return;
    Http2Frame frame;
    bool open = connection->Receive(std::chrono::milliseconds(0));
    while (connection->Next(&frame)) {
      open = open && frame.type != Http2Type::kGoAway;
      if (frame.type == Http2Type::kSettings && (frame.flags & kHttp2Ack) == 0) {
        open = open && connection->Send(Http2Bytes(Http2Type::kSettings, kHttp2Ack, 0, ""));
      }
    }
    if (!open) Close(tally);
  }
};

// `connections` threads: a sender waits for windows.
Tally SendMessages(const Options& options, Clock::time_point end) {
  std::vector<Tally> tallies(options.connections);
  std::vector<std::thread> threads;
  for (Tally& tally : tallies) {
    threads.emplace_back([&options, &tally, end] {
      Place place;
      while (Clock::now() < end) {
        if (!place.Open(options, /*hello=*/true, &tally)) {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          continue;
        }
        tally.done += SendLargeMessage(*place.connection, place.stream, kMethod, options.bytes, end);
        place.Close(&tally);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Tally all;
  for (const Tally& tally : tallies) {
    all.done += tally.done;
    all.closed += tally.closed;
    all.refused += tally.refused;
  }
  return all;
}

// As many connections as there may be, looked at ten times a second.
Tally HoldConnections(const Options& options, bool dribble, Clock::time_point end) {
  Tally tally;
  std::vector<Place> places(options.connections);
  const std::string hello = Http2Hello();
  for (size_t turn = 0; Clock::now() < end; ++turn) {
    for (size_t p = 0; p < places.size(); ++p) {
      Place& place = places[p];
      place.Drain(&tally);
      if (!place.Open(options, /*hello=*/false, &tally)) continue;
      if (!dribble || (p + turn) % 10 != 0 || place.said >= hello.size()) continue;
      if (place.connection->Send(hello.substr(place.said++, 1))) {
        ++tally.done;
      } else {
        place.Close(&tally);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return tally;
}

// At a rate, in turns over the connections, fifty times a second.
Tally SendFrames(const Options& options, bool resets, Clock::time_point end) {
  Tally tally;
  std::vector<Place> places(options.connections);
  const Clock::time_point begin = Clock::now();
  size_t due = 0;
  size_t next = 0;
  while (Clock::now() < end) {
    due = static_cast<size_t>(options.rate * std::chrono::duration<double>(Clock::now() - begin).count());
    for (size_t sent = tally.done; sent < due; ++sent) {
      Place& place = places[next++ % places.size()];
      if (!place.Open(options, /*hello=*/true, &tally)) continue;
      const std::string frames = resets ? Http2Call(place.stream, kMethod) + Http2Reset(place.stream)
                                        : Http2Bytes(Http2Type::kPing, 0, 0, "12345678");
      place.stream += 2;
      if (place.connection->Send(frames)) {
        ++tally.done;
      } else {
        place.Close(&tally);
      }
    }
    for (Place& place : places) place.Drain(&tally);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return tally;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Attacks a daemon on a unix socket.");
  app.require_subcommand(1);
  for (const char* name : {"messages", "silent", "dribble", "resets", "pings"}) {
    CLI::App* attack = app.add_subcommand(name);
    attack->add_option("--socket", options.socket, "Unix socket")->required();
    attack->add_option("--seconds", options.seconds, "Until the end");
    attack->add_option("--connections", options.connections)->check(CLI::Range(1, 100'000));
    attack->add_option("--bytes", options.bytes, "Of a message")->check(CLI::Range(1u, 4'000'000'000u));
    attack->add_option("--rate", options.rate, "A second, on all connections")->check(CLI::PositiveNumber);
  }
  CLI11_PARSE(app, argc, argv);
  const std::string attack = app.get_subcommands().front()->get_name();
  const auto length = std::chrono::duration<double>(options.seconds);
  const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(length);
  const bool holds = attack == "silent" || attack == "dribble";
  const Tally tally = attack == "messages" ? SendMessages(options, end)
                      : holds              ? HoldConnections(options, attack == "dribble", end)
                                           : SendFrames(options, attack == "resets", end);
  rusage used = {};
  getrusage(RUSAGE_SELF, &used);
  const double seconds = static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                         1e-6 * static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
  printf("{\"done\": %zu, \"closed\": %zu, \"refused\": %zu, \"processor\": %.3f}\n", tally.done,
         tally.closed, tally.refused, seconds);
  return 0;
}

}  // namespace
}  // namespace kiln

int main(int argc, char** argv) { return kiln::Main(argc, argv); }
