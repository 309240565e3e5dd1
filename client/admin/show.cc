// The text of `kilnctl show`: what the key was made of, when the variant holds, what it runs.
#include <ctime>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/admin/commands.h"
#include "client/admin/text.h"
#include "compiler/graph/guard_text.h"
#include "compiler/graph/key.h"
#include "compiler/graph/schedule_text.h"
#include "compiler/support/digest.h"
#include "google/protobuf/text_format.h"

namespace kiln {
namespace {

template <typename Message>
std::string OneLine(const std::string& bytes) {
  Message message;
  if (!message.ParseFromString(bytes)) return "(does not parse)";
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  printer.SetUseShortRepeatedPrimitives(true);
  std::string text;
  printer.PrintToString(message, &text);
  return text.empty() ? "(defaults)" : text;
}

void Line(std::string* out, absl::string_view name, absl::string_view value) {
  absl::StrAppend(out, "  ", name, std::string(name.size() < 14 ? 14 - name.size() : 1, ' '),
                  Printable(value), "\n");
}

void Indented(std::string* out, absl::string_view text, absl::string_view indent) {
  for (absl::string_view line : absl::StrSplit(absl::StripTrailingAsciiWhitespace(text), '\n')) {
    absl::StrAppend(out, indent, Printable(line), "\n");
  }
}

void ShowIngredients(const v1::ShownEntry& entry, std::string* out) {
  const v1::RequestSections& sections = entry.sections();
  absl::StrAppend(out, "\nkey ingredients\n");
  Line(out, "namespace", entry.manifest().namespace_());
  Line(out, "request key", ToHex(entry.manifest().request_key()));
  if (sections.graph_digest().empty()) {
    Line(out, "", "(the record of this key's sections is gone)");
    return;
  }
  Line(out, "graph", ToHex(sections.graph_digest()));
  Line(out, "options", OneLine<v1::Options>(sections.options()));
  Line(out, "target", OneLine<v1::Target>(sections.target()));
  Line(out, "numerics", OneLine<v1::Numerics>(sections.numerics()));
  v1::Environment environment;
  if (environment.ParseFromString(sections.environment())) {
    Line(out, "environment",
         absl::StrCat("torch ", environment.torch_version(), ", decompositions ",
                      ShortHex(environment.decomposition_digest())));
  }
  v1::GraphFacts facts;
  if (facts.ParseFromString(sections.facts())) {
    int fixed = 0, mutated = 0, donated = 0;
    for (const v1::InputFact& fact : facts.inputs()) {
      fixed += fact.is_static();
      mutated += fact.mutated();
      donated += fact.donated();
    }
    Line(out, "inputs",
         absl::StrCat(facts.inputs_size(), ": ", fixed, " static, ", mutated, " mutated, ", donated,
                      " donated"));
  }
  for (const auto& [name, digest] : SectionDigests(sections)) {
    Line(out, absl::StrCat("#", name), ToHex(digest));
  }
}

void ShowGuards(const v1::ShownEntry& entry, std::string* out) {
  const v1::Guards& guards = entry.manifest().guards();
  absl::StrAppend(out, "\nguards of this variant\n");
  for (int i = 0; i < guards.symbols_size(); ++i) {
    absl::StrAppend(out, "  ", RangeText(guards, i), "\n");
  }
  for (const std::string& text : GuardTexts(guards)) absl::StrAppend(out, "  ", Printable(text), "\n");
  if (guards.symbols_size() == 0 && guards.conditions_size() == 0)
    absl::StrAppend(out, "  none: all sizes are fixed\n");
  absl::StrAppend(out, "\nguards of Dynamo\n");
  for (const std::string& guard : entry.notes().guards()) Indented(out, guard, "  ");
  if (entry.notes().guards_size() == 0) absl::StrAppend(out, "  none came with the graph\n");
}

// The sizes that bytes are told at.
std::string SizesText(const v1::Hints& hints) {
  std::string text;
  for (int i = 0; i < hints.values_size(); ++i) {
    absl::StrAppend(&text, i == 0 ? ", bytes at " : ", ", "s", i, " = ", hints.values(i));
  }
  return text;
}

void ShowKernels(const v1::ShownEntry& entry, std::string* out) {
  absl::StrAppend(out, "\nkernels (", entry.kernels_size(), ")", SizesText(entry.hints()), "\n");
  for (int i = 0; i < entry.kernels_size(); ++i) {
    const v1::ShownKernel& shown = entry.kernels(i);
    const v1::ManifestKernel& kernel = shown.kernel();
    absl::StrAppend(out, "  [", i, "] ", Printable(kernel.notes().name()), "  ",
                    ShortHex(kernel.kernel_key()), "  code ", HumanBytes(kernel.object().raw_size()),
                    ", reads ", HumanBytes(shown.bytes_read()), ", writes ",
                    HumanBytes(shown.bytes_written()), "\n");
    if (kernel.notes().operators_size() > 0) {
      absl::StrAppend(out, "      operators: ", Printable(absl::StrJoin(kernel.notes().operators(), ", ")),
                      "\n");
    }
    for (const std::string& source : shown.sources()) {
      absl::StrAppend(out, "      from ", Printable(source), "\n");
    }
    if (!shown.loop_ir().empty()) Indented(out, shown.loop_ir(), "      | ");
    if (!shown.listing().empty()) Indented(out, shown.listing(), "      ; ");
  }
}

absl::string_view ActivationOf(const v1::Gemm& gemm) {
  switch (gemm.activation()) {
    case v1::ACTIVATION_RELU: return ", relu";
    case v1::ACTIVATION_GELU_TANH: return ", gelu by tanh";
    default: return "";
  }
}

std::string GemmText(const v1::Gemm& gemm) {
  return absl::StrCat("gemm ", gemm.batch() > 1 ? absl::StrCat(gemm.batch(), " x ") : "", gemm.a().rows(),
                      "x", gemm.a().columns(), " by ", gemm.b().rows(), "x", gemm.b().columns(), " ",
                      v1::DType_Name(gemm.dtype()), gemm.has_c() ? ", added to" : "",
                      gemm.bias() ? ", bias" : "", ActivationOf(gemm));
}

std::string ConvolutionText(const v1::Convolution& convolution) {
  constexpr absl::string_view kDirections[] = {"convolution ", "gradient of a convolution's input ",
                                               "gradient of a convolution's weights "};
  const bool known = v1::Convolution::Direction_IsValid(convolution.direction());
  return absl::StrCat(
      kDirections[known ? convolution.direction() : 0], absl::StrJoin(convolution.input(), "x"), " by ",
      absl::StrJoin(convolution.weight(), "x"), " to ", absl::StrJoin(convolution.output(), "x"), " ",
      v1::DType_Name(convolution.dtype()), convolution.channels_last() ? ", channels-last" : "");
}

std::string TunableText(const v1::Measurement& measured) {
  const v1::Tunable& tunable = measured.tunable();
  if (tunable.has_kernel()) return absl::StrCat("kernel ", Printable(measured.name()));
  return tunable.has_convolution() ? ConvolutionText(tunable.convolution()) : GemmText(tunable.gemm());
}

std::string WinnerText(const v1::Candidate& winner) {
  if (winner.has_schedule()) return ScheduleText(winner.schedule());
  return winner.has_native() ? absl::StrCat("a native kernel (", Printable(winner.native().name()), ")")
                             : "another way";
}

// Of a kernel: the schedules that were measured.
void ShowSchedules(const v1::Measurement& measured, std::string* out) {
  const v1::KernelTunable& kernel = measured.tunable().kernel();
  for (int k = 0; k < kernel.schedules_size(); ++k) {
    absl::StrAppend(out, k == 0 ? "    default: " : "    ", ScheduleText(kernel.schedules(k)), "\n");
  }
}

void ShowImages(const v1::ImageLayout& images, std::string* out) {
  absl::StrAppend(out, "  images are ", images.as_traced() ? "as traced" : "channels-last");
  if (!images.without().empty()) {
    absl::StrAppend(out, ", not measured: ", Printable(images.without()), "\n");
    return;
  }
  absl::StrAppendFormat(out, ": %.2f us channels-last, %s%.2f us as traced\n",
                        images.channels_last_microseconds(), images.at_least() ? "at least " : "",
                        images.as_traced_microseconds());
}

void ShowTuning(const v1::Tuning& tuning, std::string* out) {
  absl::StrAppend(out, "\nmeasured (", tuning.measurements_size(), ")",
                  tuning.gpu().name().empty() ? "" : absl::StrCat(" on ", Printable(tuning.gpu().name())),
                  "\n");
  if (!tuning.without().empty()) absl::StrAppend(out, "  not all: ", Printable(tuning.without()), "\n");
  if (tuning.has_images()) ShowImages(tuning.images(), out);
  for (const v1::Measurement& measured : tuning.measurements()) {
    absl::StrAppendFormat(out, "  %s: %.2f us", TunableText(measured), measured.default_microseconds());
    if (measured.has_winner()) {
      absl::StrAppendFormat(out, ", by %s %.2f us", WinnerText(measured.winner()), measured.microseconds());
    }
    absl::StrAppend(out, "; ", measured.candidates(), " candidates");
    if (measured.lost() > 0) absl::StrAppend(out, ", ", measured.lost(), " lost");
    absl::StrAppend(out, "\n");
    ShowSchedules(measured, out);
  }
}

}  // namespace

std::string ShowText(const v1::ShownEntry& entry, int64_t now) {
  const v1::EntryInfo& info = entry.info();
  const v1::CompileStatistics& statistics = entry.manifest().statistics();
  std::string out = absl::StrCat(Printable(info.title().empty() ? "(untitled)" : info.title()), "\n");
  Line(&out, "compile key", ToHex(info.compile_key()));
  Line(&out, "variant", ToHex(info.variant_id()));
  Line(&out, "size", HumanBytes(info.bytes()));
  Line(&out, "age", Age(info.created_unix_seconds(), now));
  Line(&out, "last used", Age(info.last_used_unix_seconds(), now));
  Line(&out, "hits", absl::StrCat(info.hits()));
  Line(&out, "nodes",
       absl::StrCat(statistics.nodes(), ", ", statistics.nodes_decomposed(), " after decomposition"));
  Line(&out, "took",
       absl::StrCat("queue ", HumanSeconds(statistics.queue_seconds()), ", plan ",
                    HumanSeconds(statistics.plan_seconds()), ", emit ",
                    HumanSeconds(statistics.emit_seconds())));
  ShowIngredients(entry, &out);
  ShowGuards(entry, &out);
  ShowKernels(entry, &out);
  absl::StrAppend(&out, "\nlibrary calls\n");
  for (const v1::LibraryCall& call : statistics.calls()) {
    absl::StrAppend(&out, "  ", call.count(), " x ", Printable(call.target()), " (", Printable(call.reason()),
                    ")\n");
  }
  if (statistics.calls_size() == 0) absl::StrAppend(&out, "  none\n");
  if (entry.manifest().has_tuning()) ShowTuning(entry.manifest().tuning(), &out);
  return out;
}

}  // namespace kiln
