#include "compiler/graph/key_difference.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/digest.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"

namespace kiln {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::util::MessageDifferencer;

constexpr size_t kDigestCharactersShown = 12;

std::string DigestText(absl::string_view bytes) { return ToHex(bytes).substr(0, kDigestCharactersShown); }

// A field, or one element of a repeated one.
std::string ValueText(const Message& message, const FieldDescriptor* field, int index) {
  if (field->type() == FieldDescriptor::TYPE_BYTES && !field->is_repeated())
    return DigestText(message.GetReflection()->GetString(message, field));
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  std::string text;
  printer.PrintFieldValueToString(message, field, field->is_repeated() ? index : -1, &text);
  absl::StripTrailingAsciiWhitespace(&text);
  return text.empty() ? "(defaults)" : text;  // of a message that says nothing
}

// Writes down what a comparison meets.
class FieldReporter final : public MessageDifferencer::Reporter {
 public:
  using Path = std::vector<MessageDifferencer::SpecificField>;
  FieldReporter(const char* ingredient, std::vector<v1::KeyDifference>* found)
      : ingredient_(ingredient), found_(found) {}

  void ReportAdded(const Message&, const Message& there, const Path& path) override {
    Add(path, "", ValueText(there, path.back().field, path.back().new_index));
  }
  void ReportDeleted(const Message& here, const Message&, const Path& path) override {
    Add(path, ValueText(here, path.back().field, path.back().index), "");
  }
  // Of an element that is a message its fields are told.
  void ReportModified(const Message& here, const Message& there, const Path& path) override {
    if (path.back().field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) return;
    Add(path, ValueText(here, path.back().field, path.back().index),
        ValueText(there, path.back().field, path.back().new_index));
  }
  size_t count() const { return count_; }

 private:
  void Add(const Path& path, std::string here, std::string there) {
    if (++count_ > kFieldsShownMax) return;
    std::string name;
    for (const MessageDifferencer::SpecificField& step : path) {
      const int index = step.index >= 0 ? step.index : step.new_index;
      absl::StrAppend(&name, name.empty() ? "" : ".", step.field->name(),
                      step.field->is_repeated() ? absl::StrCat("[", index, "]") : "");
    }
    v1::KeyDifference& difference = found_->emplace_back();
    difference.set_ingredient(ingredient_);
    difference.set_field(std::move(name));
    difference.set_here(std::move(here));
    difference.set_there(std::move(there));
  }

  const char* const ingredient_;
  std::vector<v1::KeyDifference>* const found_;
  size_t count_ = 0;
};

void AddWhole(const char* ingredient, std::string here, std::string there,
              std::vector<v1::KeyDifference>* found) {
  v1::KeyDifference& difference = found->emplace_back();
  difference.set_ingredient(ingredient);
  difference.set_here(std::move(here));
  difference.set_there(std::move(there));
}

// Sections that are bytes of a message, or, where a client sent what is none, just bytes.
template <typename Section>
void CompareSection(const char* ingredient, const std::string& here, const std::string& there,
                    std::vector<v1::KeyDifference>* found) {
  if (here == there) return;
  Section a, b;
  if (!a.ParseFromString(here) || !b.ParseFromString(there)) {
    AddWhole(ingredient, DigestText(Sha256(here)), DigestText(Sha256(there)), found);
    return;
  }
  FieldReporter reporter(ingredient, found);
  MessageDifferencer differencer;
  differencer.set_message_field_comparison(MessageDifferencer::EQUIVALENT);
  differencer.TreatAsSet(v1::Target::descriptor()->FindFieldByName("features"));
  differencer.ReportDifferencesTo(&reporter);
  differencer.Compare(a, b);
  if (reporter.count() > kFieldsShownMax) {
    AddWhole(ingredient, absl::StrCat(reporter.count() - kFieldsShownMax, " fields more"), "", found);
  } else if (reporter.count() == 0) {  // such as unknown fields
    AddWhole(ingredient, DigestText(Sha256(here)), DigestText(Sha256(there)), found);
  }
}

}  // namespace

size_t EqualIngredients(const v1::RequestRecord& here, const v1::RequestRecord& there) {
  const v1::RequestSections &a = here.sections(), &b = there.sections();
  return size_t{here.namespace_() == there.namespace_()} + (a.options() == b.options()) +
         (a.target() == b.target()) + (a.numerics() == b.numerics()) + (a.facts() == b.facts()) +
         (a.environment() == b.environment()) + (a.graph_digest() == b.graph_digest()) +
         (here.compiler_fingerprint() == there.compiler_fingerprint());
}

std::vector<v1::KeyDifference> KeyDifferences(const v1::RequestRecord& here, const v1::RequestRecord& there) {
  const v1::RequestSections &a = here.sections(), &b = there.sections();
  std::vector<v1::KeyDifference> found;
  if (here.namespace_() != there.namespace_())
    AddWhole("namespace", here.namespace_(), there.namespace_(), &found);
  CompareSection<v1::Options>("options", a.options(), b.options(), &found);
  CompareSection<v1::Target>("target", a.target(), b.target(), &found);
  CompareSection<v1::Numerics>("numerics", a.numerics(), b.numerics(), &found);
  CompareSection<v1::GraphFacts>("facts", a.facts(), b.facts(), &found);
  CompareSection<v1::Environment>("environment", a.environment(), b.environment(), &found);
  if (a.graph_digest() != b.graph_digest())
    AddWhole("graph", DigestText(a.graph_digest()), DigestText(b.graph_digest()), &found);
  if (here.compiler_fingerprint() != there.compiler_fingerprint())
    AddWhole("compiler", here.compiler_fingerprint(), there.compiler_fingerprint(), &found);
  return found;
}

}  // namespace kiln
