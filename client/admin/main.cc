// kilnctl: looks into a running kilnd.
#include <functional>
#include <iostream>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/admin/commands.h"
#include "client/admin/completion.h"
#include "compiler/channel/channel.h"

namespace kiln {
namespace {

constexpr char kKeyHelp[] = "Start of a compile key, request key or variant, in hex";

// What the command line says.
struct Words {
  std::string address, key, other;
  bool listings = false, repair = false, all = false, every_match = false, tuning = false;
  uint32_t limit = 50, why_limit = 10;
  uint64_t live_bytes = 0;
  struct {
    bool once = false;
    double interval = 1;
  } top;
  struct {
    bool undo = false, wait = false;
  } drain;
  struct {
    std::string file, into, tenant;
    std::vector<std::string> about;
    bool pin = false;
  } bundle;
};

class CommandLine {
 public:
  CommandLine();
  // The exit code.
  int Run(int argc, char** argv);

 private:
  using Command = std::function<int()>;
  CLI::App* Add(const std::string& name, const std::string& help, const std::string& example, Command run);
  void AddQuestions();
  void AddChanges();
  void AddBundles();
  void AddCompletion();
  std::string Mistake(const CLI::ParseError& error) const;
  int Connect();

  CLI::App app_;
  AdminContext context_;
  TlsFiles tls_;
  Words words_;
  Command run_;  // of the command that was given
  bool needs_daemon_ = true;
};

CommandLine::CommandLine()
    : app_(
          "kilnctl looks into a running kilnd: what it does, what it keeps, why.\n"
          "\n"
          "Exit codes: 0 done, 1 nothing found or a check failed, 2 wrong usage, 3 no daemon answers.",
          "kilnctl") {
  app_.set_version_flag("--version", "kilnctl " KILN_VERSION);
  app_.require_subcommand(1);
  app_.fallthrough();
  context_.out = &std::cout;
  context_.error = &std::cerr;
  app_.add_option(
      "--address", words_.address,
      "unix:/path, /path or HOST:PORT. Default: KILN_ADDRESS, else the embedded daemon of this build");
  app_.add_option("--tls-ca", tls_.authority, "PEM file: who signed kilnd's certificate; for mutual TLS")
      ->envname("KILN_TLS_CA");
  app_.add_option("--tls-cert", tls_.certificate, "PEM file: the caller's certificate")
      ->envname("KILN_TLS_CERT");
  app_.add_option("--tls-key", tls_.key, "PEM file (0600): its key")->envname("KILN_TLS_KEY");
  app_.add_flag("--json", context_.json, "For scripts");
  app_.add_option("--timeout", context_.timeout_seconds, "Seconds to wait for the answer")
      ->check(CLI::Range(0.001, 86400.0))
      ->capture_default_str();
  AddQuestions();
  AddChanges();
  AddBundles();
  AddCompletion();
}

CLI::App* CommandLine::Add(const std::string& name, const std::string& help, const std::string& example,
                           Command run) {
  CLI::App* command = app_.add_subcommand(name, help);
  command->footer(absl::StrCat("Example: kilnctl ", name, example.empty() ? "" : " ", example));
  command->callback([this, run = std::move(run)] { run_ = run; });
  return command;
}

void CommandLine::AddQuestions() {
  const AdminContext& c = context_;
  Words& w = words_;
  CLI::App* command;
  Add("status", "The daemon: version, workers, jobs, store", "--json", [&] { return RunStatus(c); });
  Add("stats", "Counts since the daemon started: lookups, hits, compiles, failures, bytes; by tenant and job",
      "--json", [&] { return RunStats(c); });
  Add("jobs", "What is being compiled now", "", [&] { return RunJobs(c); });
  command = Add("ls", "Entries of the store, the last used first", "--limit 10",
                [&] { return RunList(c, w.limit); });
  command->add_option("--limit", w.limit, "At most so many; 0: all")->capture_default_str();
  command = Add("show", "One entry: the key's ingredients, guards, kernels with their loops, library calls",
                "3f2a1b --listings", [&] { return RunShow(c, w.key, w.listings); });
  command->add_option("KEY", w.key, kKeyHelp)->required();
  command->add_flag("--listings", w.listings, "Also LLVM IR and assembly, regenerated from the stored loops");
  command = Add("why", "Why programs were compiled: what of the key differs from the nearest stored one",
                "nightly", [&] { return RunWhy(c, w.key, w.why_limit); });
  command->add_option(
      "KEY|JOB", w.key,
      "A training job (KILN_JOB), for its last compiles, or the start of a key; default: the last of all");
  command->add_option("--limit", w.why_limit, "Of a job: at most so many")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  command = Add("diff", "What of two programs, here or in the tier, differs: keys, counts, nodes, loops",
                "3f2a1b 8f0011", [&] { return RunDiff(c, w.key, w.other); });
  command->add_option("A", w.key, kKeyHelp)->required();
  command->add_option("B", w.other, "Likewise, of the other")->required();
  command = Add("top", "Who has work in flight, again each second: workers, compiles, hits by tenant and job",
                "--once", [&] { return RunTop(c, w.top.once, w.top.interval); });
  command->add_flag("--once", w.top.once, "One look, of one interval");
  command->add_option("--interval", w.top.interval, "Seconds between looks, which rates are of")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  Add("tenants", "Tenants and namespaces: users, quotas, connections, what they have in flight", "",
      [&] { return RunTenants(c); });
  Add("keys", "Who signs what the daemon makes, and whose signatures count", "", [&] { return RunKeys(c); });
  Add("doctor",
      "Check the daemon, its identity, keys, certificates, clock, sandbox and tier; say how to mend it", "",
      [&] { return RunDoctor(c); });
}

void CommandLine::AddChanges() {
  const AdminContext& c = context_;
  Words& w = words_;
  CLI::App* command = Add("verify", "Read the whole store and check every digest", "--repair",
                          [&] { return RunVerify(c, w.repair); });
  command->add_flag("--repair", w.repair, "Take damaged entries out; they are compiled again when needed");
  command = Add("rm", "Remove entries, and refusals that are remembered; with --all tuning records too",
                "3f2a1b", [&] { return RunRemove(c, w.key, w.all, w.every_match, w.tuning); });
  CLI::Option* key = command->add_option("KEY", w.key, kKeyHelp);
  command->add_flag("--all", w.all, "Everything")->excludes(key);
  command
      ->add_flag(
          "--tuning", w.tuning,
          "Measure again: the measurements by which they were made go as well, for all daemons of a tier")
      ->needs(key);
  command->add_flag("--every-match", w.every_match, "Where several keys start so, all of them");
  for (const bool unpin : {false, true}) {
    command =
        Add(unpin ? "unpin" : "pin",
            unpin ? "Let entries be evicted again" : "Keep entries from being evicted, with all they name",
            "3f2a1b", [&c, &w, unpin] { return RunPin(c, w.key, unpin, w.every_match); });
    command->add_option("KEY", w.key, kKeyHelp)->required();
    command->add_flag("--every-match", w.every_match, "Where several keys start so, all of them");
  }
  command = Add("evict", "Make room in the store now, in the daemon's own order", "--to-bytes 2GB",
                [&] { return RunEvict(c, w.live_bytes); });
  command
      ->add_option("--to-bytes", w.live_bytes, "Until what is left has at most so many; pinned entries stay")
      ->required()
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  command = Add("drain", "Take no new compiles; hits are served, and what runs or waits goes on", "--wait",
                [&] { return RunDrain(c, w.drain.undo, w.drain.wait); });
  CLI::Option* wait = command->add_flag("--wait", w.drain.wait, "Until nothing runs or waits any more");
  command->add_flag("--undo", w.drain.undo, "Take compiles again")->excludes(wait);
}

void CommandLine::AddBundles() {
  const AdminContext& c = context_;
  Words& w = words_;
  CLI::App* command =
      Add("export", "Write a bundle: programs with all that they need, in one signed file",
          "nightly -o nightly.kiln",
          [&] { return RunExport(c, w.bundle.about, w.bundle.tenant, w.every_match, w.bundle.file); });
  command
      ->add_option("JOB|KEY", w.bundle.about,
                   "A training job (KILN_JOB), for all that it used since the daemon started, or starts of "
                   "keys, in hex")
      ->required();
  command->add_option("-o,--output", w.bundle.file, "The bundle")->required()->type_name("FILE");
  command->add_option("--tenant", w.bundle.tenant, "Whose job it is, where jobs of several have that name");
  command->add_flag("--every-match", w.every_match, "Where several keys start so, all of them");
  for (const bool warm : {false, true}) {
    command = Add(warm ? "warm" : "import",
                  warm ? "Import a bundle and pin its programs, before the job that needs them starts"
                       : "Take a bundle into the store, once all of it is checked",
                  warm ? "nightly.kiln" : "ci.kiln --into production", [&c, &w, warm] {
                    return RunImport(c, w.bundle.file, w.bundle.into, warm || w.bundle.pin);
                  });
    command->add_option("FILE", w.bundle.file, "A bundle of kilnctl export")->required()->type_name("FILE");
    command->add_option("--into", w.bundle.into,
                        "Another namespace than it was made in: new keys, and this daemon's signature");
    if (!warm) command->add_flag("--pin", w.bundle.pin, "Keep its programs from being evicted");
  }
}

void CommandLine::AddCompletion() {
  CLI::App* completion =
      app_.add_subcommand("completion", "A script by which a shell completes kilnctl's words");
  completion->footer("Example: source <(kilnctl completion bash)");
  completion->require_subcommand(1);
  const auto add = [&](const char* shell, std::string (*script)(const CLI::App&)) {
    completion->add_subcommand(shell, absl::StrCat("For ", shell))->callback([this, script] {
      needs_daemon_ = false;
      run_ = [this, script] {
        std::cout << script(app_);
        return kExitOk;
      };
    });
  };
  add("bash", BashCompletion);
  add("zsh", ZshCompletion);
}

std::string CommandLine::Mistake(const CLI::ParseError& error) const {
  const std::vector<std::string> unknown = app_.remaining();
  if (!app_.get_subcommands().empty() || unknown.empty()) return error.what();
  std::vector<std::string> names;
  for (const CLI::App* command : app_.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return absl::StrCat("\"", unknown[0], "\" is no command; the commands are ", absl::StrJoin(names, ", "));
}

int CommandLine::Connect() {
  if (absl::Status status = ResolveAddress(words_.address, &context_); !status.ok()) {
    std::cerr << "kilnctl: " << status.message() << "\n";
    return absl::IsInvalidArgument(status) ? kExitUsage : kExitUnreachable;
  }
  auto channel =
      NewChannel(context_.address, tls_,
                 {"--tls-cert (KILN_TLS_CERT)", "--tls-key (KILN_TLS_KEY)", "--tls-ca (KILN_TLS_CA)"}, -1);
  if (!channel.ok()) {
    std::cerr << "kilnctl: " << channel.status().message() << "\n";
    return kExitUsage;
  }
  context_.channel = *std::move(channel);
  context_.tls_certificate = tls_.certificate;
  return kExitOk;
}

int CommandLine::Run(int argc, char** argv) {
  try {
    app_.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app_.exit(error);  // help, version
    std::cerr << "kilnctl: " << Mistake(error) << "; kilnctl --help tells what it takes\n";
    return kExitUsage;
  }
  if (app_.got_subcommand("rm") && words_.key.empty() && !words_.all) {
    std::cerr << "kilnctl: rm needs a KEY, or --all\n";
    return kExitUsage;
  }
  if (needs_daemon_) {
    if (const int code = Connect(); code != kExitOk) return code;
  }
  return run_();
}

}  // namespace
}  // namespace kiln

int main(int argc, char** argv) { return kiln::CommandLine().Run(argc, argv); }
