// kilnctl why and diff: what of two programs' keys differs, and of the programs.
#include <ctime>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/admin/ask.h"
#include "client/admin/json.h"
#include "client/admin/text.h"
#include "compiler/support/digest.h"

namespace kiln {
namespace {

// Every line after `indent`.
std::string Indented(const std::string& text, const char* indent) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    absl::StrAppend(&out, indent, text.substr(at, end - at));
    at = end;
  }
  return out;
}

std::string Title(const v1::ComparedProgram& program) {
  return program.title().empty() ? "(untitled)" : program.title();
}

std::string Named(const v1::ComparedProgram& program, int64_t now) {
  std::vector<std::string> facts = {Title(program)};
  if (program.in_tier()) facts.push_back("of the shared tier");
  if (program.compiled_unix_seconds() != 0)
    facts.push_back(absl::StrCat("compiled ", Age(program.compiled_unix_seconds(), now), " ago"));
  return Printable(absl::StrCat(ShortHex(program.compile_key()), " (", absl::StrJoin(facts, ", "), ")"));
}

std::string DifferencesTable(const google::protobuf::RepeatedPtrField<v1::KeyDifference>& differences,
                             const char* here, const char* there) {
  Table table({"INGREDIENT", "FIELD", here, there});
  const auto shown = [](const std::string& value) { return value.empty() ? std::string("-") : value; };
  for (const v1::KeyDifference& difference : differences) {
    table.Add({difference.ingredient(), shown(difference.field()), shown(difference.here()),
               shown(difference.there())});
  }
  return table.ToString();
}

std::string SizesText(const v1::Hints& hints) {
  std::vector<std::string> sizes;
  for (int i = 0; i < hints.values_size(); ++i) sizes.push_back(absl::StrCat("s", i, " = ", hints.values(i)));
  return absl::StrJoin(sizes, ", ");
}

// As kilnctl diff takes it: of the shared tier it has to be whole.
std::string DiffWord(const v1::ComparedProgram& program) {
  return program.in_tier() ? ToHex(program.compile_key()) : ShortHex(program.compile_key());
}

std::string ReasonText(const v1::Explanation& explanation, int64_t now) {
  switch (explanation.why()) {
    case v1::WHY_FIRST: return "  nothing was stored that it could be compared with\n";
    case v1::WHY_DEBUG: return "  KILN_DEBUG was set: it compiles what is stored\n";
    case v1::WHY_GONE:
      return absl::StrCat(
          "  it had been compiled ", Age(explanation.compiled_before_unix_seconds(), now),
          " ago, and was not stored any more (evicted, removed, or that compile failed), or lacked "
          "measurements that another daemon has made since\n");
    case v1::WHY_SIZES: {
      std::string text = absl::StrCat("  the stored variants of this key do not hold at its sizes (",
                                      SizesText(explanation.hints()), "):\n");
      for (const v1::VariantMiss& variant : explanation.variants()) {
        absl::StrAppend(&text, "    variant ", ShortHex(variant.variant_id()), " asks for ",
                        Printable(absl::StrJoin(variant.broken(), ", ")), "\n");
      }
      return text;
    }
    default: break;
  }
  std::string text = absl::StrCat("  no stored program had this key; the nearest is ",
                                  Named(explanation.nearest(), now), ":\n");
  absl::StrAppend(&text, Indented(DifferencesTable(explanation.differences(), "HERE", "THERE"), "    "));
  for (const v1::KeyDifference& difference : explanation.differences()) {
    if (difference.ingredient() != "graph") continue;
    absl::StrAppend(&text, "  what of the graphs differs: kilnctl diff ", DiffWord(explanation.program()),
                    " ", DiffWord(explanation.nearest()), "\n");
  }
  return text;
}

void AppendListing(const char* title, const google::protobuf::RepeatedPtrField<std::string>& lines,
                   std::string* out) {
  if (lines.empty()) return;
  absl::StrAppend(out, "\n", title, "\n");
  for (const std::string& line : lines) absl::StrAppend(out, "  ", Printable(line), "\n");
}

}  // namespace

int RunWhy(const AdminContext& context, const std::string& about, uint32_t limit) {
  v1::WhyRequest request;
  request.set_about(about);
  request.set_limit(limit);
  v1::WhyReply reply;
  if (int code = Ask(context, &v1::Admin::Stub::Why, request, &reply); code != kExitOk) return code;
  if (context.json) {
    *context.out << ToJson(reply);
    return kExitOk;
  }
  const int64_t now = time(nullptr);
  for (int i = 0; i < reply.explanations_size(); ++i) {
    const v1::Explanation& explanation = reply.explanations(i);
    *context.out << (i > 0 ? "\n" : "") << Named(explanation.program(), now)
                 << (explanation.tenant().empty() ? "" : Printable(", of " + explanation.tenant()))
                 << (explanation.job().empty() ? "" : Printable(", job " + explanation.job())) << "\n"
                 << ReasonText(explanation, now);
    if (explanation.waits_for().empty()) continue;
    *context.out << "  it runs by its defaults and waits for a device of kind "
                 << Printable(explanation.waits_for())
                 << ", on which a daemon of the shared tier is to measure\n";
  }
  if (reply.compared() < reply.stored()) {
    *context.out << "\ncompared with " << reply.compared() << " of " << reply.stored()
                 << " stored keys, the latest\n";
  }
  if (!reply.tier_message().empty())
    *context.out << "\nnot all of the shared tier was compared: " << Printable(reply.tier_message()) << "\n";
  return kExitOk;
}

int RunDiff(const AdminContext& context, const std::string& a, const std::string& b) {
  v1::DiffRequest request;
  request.set_a(a);
  request.set_b(b);
  v1::DiffReply reply;
  if (int code = Ask(context, &v1::Admin::Stub::Diff, request, &reply); code != kExitOk) return code;
  if (context.json) {
    *context.out << ToJson(reply);
    return kExitOk;
  }
  const int64_t now = time(nullptr);
  std::string out = absl::StrCat("A  ", Named(reply.a(), now), "\nB  ", Named(reply.b(), now), "\n\n");
  absl::StrAppend(&out, reply.differences().empty() ? "the keys have the same ingredients\n"
                                                    : DifferencesTable(reply.differences(), "A", "B"));
  Table facts({"COUNT", ">A", ">B"});
  for (const v1::FactDifference& fact : reply.facts()) facts.Add({fact.name(), fact.a(), fact.b()});
  absl::StrAppend(&out, "\n", facts.ToString());
  AppendListing("nodes of the graphs (- A, + B)", reply.nodes(), &out);
  AppendListing("loops of kernels that only one of them has (- A, + B)", reply.kernels(), &out);
  AppendListing("not compared", reply.not_compared(), &out);
  *context.out << out;
  return kExitOk;
}

}  // namespace kiln
