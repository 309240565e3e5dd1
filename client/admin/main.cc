// kilnctl: looks into a running kilnd.
#include <iostream>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/admin/commands.h"
#include "client/src/channel.h"

namespace kiln {
namespace {

std::string Mistake(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> unknown = app.remaining();
  if (!app.get_subcommands().empty() || unknown.empty()) return error.what();
  std::vector<std::string> commands;
  for (const CLI::App* command : app.get_subcommands(nullptr)) commands.push_back(command->get_name());
  return absl::StrCat("\"", unknown[0], "\" is no command; the commands are ", absl::StrJoin(commands, ", "));
}

int Main(int argc, char** argv) {
  CLI::App app(
      "kilnctl looks into a running kilnd: what it does, what it keeps, why.\n"
      "\n"
      "Exit codes: 0 done, 1 nothing found or a check failed, 2 wrong usage, 3 no daemon answers.",
      "kilnctl");
  app.set_version_flag("--version", "kilnctl " KILN_VERSION);
  app.require_subcommand(1);
  app.fallthrough();
  AdminContext context;
  context.out = &std::cout;
  context.error = &std::cerr;
  std::string address;
  app.add_option(
      "--address", address,
      "unix:/path, /path or HOST:PORT. Default: KILN_ADDRESS, else the embedded daemon of this build");
  TlsFiles tls;
  app.add_option("--tls-ca", tls.authority, "PEM file: who signed kilnd's certificate; for mutual TLS")
      ->envname("KILN_TLS_CA");
  app.add_option("--tls-cert", tls.certificate, "PEM file: the caller's certificate")
      ->envname("KILN_TLS_CERT");
  app.add_option("--tls-key", tls.key, "PEM file (0600): its key")->envname("KILN_TLS_KEY");
  app.add_flag("--json", context.json, "For scripts");
  app.add_option("--timeout", context.timeout_seconds, "Seconds to wait for the answer")
      ->check(CLI::Range(0.001, 86400.0))
      ->capture_default_str();

  uint32_t limit = 50;
  std::string key;
  bool listings = false, repair = false, all = false, every_match = false;
  uint64_t live_bytes = 0;
  app.add_subcommand("status", "The daemon: version, workers, jobs, store");
  app.add_subcommand(
      "stats",
      "Counts since the daemon started: lookups, hits, compiles, failures, bytes; by tenant and job");
  app.add_subcommand("jobs", "What is being compiled now");
  CLI::App* list = app.add_subcommand("ls", "Entries of the store, the last used first");
  list->add_option("--limit", limit, "At most so many; 0: all")->capture_default_str();
  CLI::App* show = app.add_subcommand(
      "show", "One entry: the key's ingredients, guards, kernels with their loops, library calls");
  show->add_option("KEY", key, "Start of a compile key, request key or variant, in hex")->required();
  show->add_flag("--listings", listings, "Also LLVM IR and assembly, made anew from the stored loops");
  CLI::App* verify = app.add_subcommand("verify", "Read the whole store and check every digest");
  verify->add_flag("--repair", repair, "Take damaged entries out; they are compiled again when needed");
  CLI::App* remove = app.add_subcommand(
      "rm", "Remove entries, and refusals that are remembered; with --all tuning records too");
  CLI::Option* which =
      remove->add_option("KEY", key, "Start of a compile key, request key or variant, in hex");
  remove->add_flag("--all", all, "Everything")->excludes(which);
  for (const char* name : {"pin", "unpin"}) {
    CLI::App* command = app.add_subcommand(name, name == std::string("pin")
                                                     ? "Keep entries from being evicted, with all they name"
                                                     : "Let entries be evicted again");
    command->add_option("KEY", key, "Start of a compile key, request key or variant, in hex")->required();
    command->add_flag("--every-match", every_match, "Where several keys start so, all of them");
  }
  remove->add_flag("--every-match", every_match, "Where several keys start so, all of them");
  CLI::App* evict = app.add_subcommand("evict", "Make room in the store now, in the daemon's own order");
  evict->add_option("--to-bytes", live_bytes, "Until what is left has at most so many; pinned entries stay")
      ->required()
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  app.add_subcommand("keys", "Who signs what the daemon makes, and whose signatures count");
  app.add_subcommand("doctor", "Check that the daemon is reachable and well, and say how to mend it");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // help, version
    std::cerr << "kilnctl: " << Mistake(app, error) << "; kilnctl --help tells what it takes\n";
    return kExitUsage;
  }
  if (remove->parsed() && key.empty() && !all) {
    std::cerr << "kilnctl: rm needs a KEY, or --all\n";
    return kExitUsage;
  }
  if (absl::Status status = ResolveAddress(address, &context); !status.ok()) {
    std::cerr << "kilnctl: " << status.message() << "\n";
    return absl::IsInvalidArgument(status) ? kExitUsage : kExitUnreachable;
  }
  auto channel =
      NewChannel(context.address, tls,
                 {"--tls-cert (KILN_TLS_CERT)", "--tls-key (KILN_TLS_KEY)", "--tls-ca (KILN_TLS_CA)"}, -1);
  if (!channel.ok()) {
    std::cerr << "kilnctl: " << channel.status().message() << "\n";
    return kExitUsage;
  }
  context.channel = *std::move(channel);

  const std::string command = app.get_subcommands().front()->get_name();
  if (command == "status") return RunStatus(context);
  if (command == "stats") return RunStats(context);
  if (command == "jobs") return RunJobs(context);
  if (command == "ls") return RunList(context, limit);
  if (command == "show") return RunShow(context, key, listings);
  if (command == "verify") return RunVerify(context, repair);
  if (command == "rm") return RunRemove(context, key, all, every_match);
  if (command == "pin" || command == "unpin") return RunPin(context, key, command == "unpin", every_match);
  if (command == "evict") return RunEvict(context, live_bytes);
  if (command == "keys") return RunKeys(context);
  return RunDoctor(context);
}

}  // namespace
}  // namespace kiln

int main(int argc, char** argv) { return kiln::Main(argc, argv); }
