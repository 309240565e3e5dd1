#include "client/admin/completion.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace kiln {
namespace {

using Commands = std::vector<const CLI::App*>;

Commands CommandsOf(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::vector<const CLI::Option*> NamedOptions(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return !option->get_lnames().empty(); });
}

bool TakesValue(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

bool IsFile(const CLI::Option& option) { return option.get_type_name() == "FILE"; }

// Whether what follows the command is a file's name.
bool TakesFile(const CLI::App& command) {
  const auto files = [](const CLI::Option* option) { return option->get_positional() && IsFile(*option); };
  return !command.get_options(files).empty();
}

// "--listings --help".
std::vector<std::string> OptionWords(const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::Option* option : NamedOptions(app)) {
    for (const std::string& name : option->get_lnames()) words.push_back(absl::StrCat("--", name));
  }
  return words;
}

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : CommandsOf(app)) names.push_back(command->get_name());
  return names;
}

void AddValueOptions(const CLI::App& app, std::vector<std::string>* words) {
  for (const CLI::Option* option : NamedOptions(app)) {
    if (!TakesValue(*option)) continue;
    for (const std::string& name : option->get_lnames()) words->push_back(absl::StrCat("--", name));
  }
}

std::string Joined(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return absl::StrJoin(a, " ");
}

// The first line, for a word in single quotes.
std::string Quotable(const std::string& description) {
  const std::string line = std::vector<std::string>(absl::StrSplit(description, '\n'))[0];
  return absl::StrReplaceAll(line, {{"'", "'\\''"}, {":", "\\:"}, {"[", "\\["}, {"]", "\\]"}});
}

std::string ZshOptions(const CLI::App& app) {
  std::string text;
  for (const CLI::Option* option : NamedOptions(app)) {
    for (const std::string& name : option->get_lnames()) {
      const char* const value = IsFile(*option) ? ":file:_files" : ":value:";
      absl::StrAppend(&text, " '--", name, TakesValue(*option) ? "=" : "", "[",
                      Quotable(option->get_description()), "]", TakesValue(*option) ? value : "", "'");
    }
  }
  return text;
}

}  // namespace

std::string BashCompletion(const CLI::App& app) {
  std::vector<std::string> values;
  AddValueOptions(app, &values);
  std::string cases;
  for (const CLI::App* command : CommandsOf(app)) {
    AddValueOptions(*command, &values);
    absl::StrAppend(&cases, "    ", command->get_name(), ") words='",
                    Joined(CommandNames(*command), OptionWords(*command)), " ", Joined(OptionWords(app), {}),
                    "' ;;\n");
  }
  const std::string value_options = absl::StrJoin(values, "|");
  return absl::StrCat(
      "# Of kilnctl, for bash: source <(kilnctl completion bash)\n"
      "_kilnctl() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} command= value= words i\n"
      "  COMPREPLY=()\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    if [[ $value ]]; then value=; continue; fi\n"
      "    case ${COMP_WORDS[i]} in\n"
      "      ",
      value_options,
      ") value=1 ;;\n"
      "      -*) ;;\n"
      "      *) [[ $command ]] || command=${COMP_WORDS[i]} ;;\n"
      "    esac\n"
      "  done\n"
      "  if [[ $value ]]; then return; fi\n"
      "  case $command in\n"
      "    '') words='",
      Joined(CommandNames(app), OptionWords(app)), "' ;;\n", cases,
      "  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "}\n"
      "complete -o default -F _kilnctl kilnctl\n");
}

std::string ZshCompletion(const CLI::App& app) {
  std::string commands, cases;
  for (const CLI::App* command : CommandsOf(app)) {
    absl::StrAppend(&commands, "    '", command->get_name(), ":", Quotable(command->get_description()),
                    "'\n");
    const std::vector<std::string> below = CommandNames(*command);
    absl::StrAppend(&cases, "        ", command->get_name(), ") _arguments $global", ZshOptions(*command),
                    " '",
                    TakesFile(*command) ? "1:file:_files"
                    : below.empty()     ? "*:word:"
                                        : absl::StrCat("1:command:(", absl::StrJoin(below, " "), ")"),
                    "' ;;\n");
  }
  return absl::StrCat(
      "#compdef kilnctl\n"
      "# Of kilnctl, for zsh: source <(kilnctl completion zsh)\n"
      "_kilnctl() {\n"
      "  local state\n"
      "  local -a global commands\n"
      "  global=(",
      ZshOptions(app),
      ")\n"
      "  commands=(\n",
      commands,
      "  )\n"
      "  _arguments -C $global '1:command:->command' '*::word:->word'\n"
      "  case $state in\n"
      "    command) _describe command commands ;;\n"
      "    word)\n"
      "      case $words[1] in\n",
      cases,
      "      esac ;;\n"
      "  esac\n"
      "}\n"
      "compdef _kilnctl kilnctl\n");
}

}  // namespace kiln
