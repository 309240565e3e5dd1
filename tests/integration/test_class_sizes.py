"""No class and no function that ships is too large (tests/class_sizes.py); the check sees one that is, however it is
written."""
import os
import pathlib
import sys
import types
from collections.abc import Mapping

import pytest

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(TESTS)
sys.path.insert(0, TESTS)
import class_sizes  # noqa: E402 - the path comes first


def test_nothing_is_too_large() -> None:
    assert class_sizes.faults(ROOT, class_sizes.LARGER) == []


def faults_of(root: pathlib.Path, text: str, larger: Mapping[str, tuple[int, ...]] = types.MappingProxyType({}),
              folder: str = "compiler/codegen") -> list[str]:
    """What is wrong in a tree with this file alone."""
    (root / folder).mkdir(parents=True, exist_ok=True)
    (root / folder / "large.cc").write_text(text)
    return class_sizes.faults(root, dict(larger))


def class_of(methods: int, fields: int, head: str = "class Large : public Base") -> str:
    lines = [f"  int F{k}(int a) const {{ return a; }}" for k in range(methods)]
    lines += [f"  std::vector<int> f{k}_;  // not(a, method)" for k in range(fields)]
    return head + " {\n public:\n" + "\n".join(lines) + "\n};\n"


def body_of(lines: int) -> str:
    return "{\n" + "  Step(a);\n" * (lines - 2) + "}"


@pytest.mark.parametrize("text, said", [
    (class_of(class_sizes.METHODS_MAX, class_sizes.FIELDS_MAX), None),
    (class_of(class_sizes.METHODS_MAX + 1, 0), "Large: 41 methods, 0 fields"),
    (class_of(0, class_sizes.FIELDS_MAX + 1), "Large: 0 methods, 16 fields"),
    ("void Large::Emit(int a) " + body_of(class_sizes.LINES_MAX), None),
    ("void Large::Emit(int a) " + body_of(class_sizes.LINES_MAX + 1), "Large::Emit: 61 lines"),
    ("void Large::Emit(int a) {", "a bracket without the other in line 1"),
])
@pytest.mark.parametrize("folder", ["cache", "client/runtime", "compiler/codegen/deeper", "server/flight"])
def test_one_at_the_limit_and_one_beyond(tmp_path: pathlib.Path, folder: str, text: str, said: str | None) -> None:
    found = faults_of(tmp_path, text, folder=folder)
    assert [row.split(", of ")[0] for row in found] == ([f"{folder}/large.cc: {said}"] if said else [])


@pytest.mark.parametrize("text, name", [
    ("void Emit(int a) BODY", "Emit"),
    ("class A {\n public:\n  void Emit(int a) const BODY\n  int a_ = 0;\n};", "A::Emit"),
    ("class A {\n  class B {\n    bool operator()(int a) BODY\n  };\n};", "A::B::operator"),
    ("struct A {\n  explicit A(int a) : B<int>{a}, a_{a}, c_(a) BODY\n};", "A::A"),
    ("A::A(int a) : a_{a, {}} BODY", "A::A"),
    ("A::~A() BODY", "A::~A"),
    ("void Emit(Options options = {}, int a = Of{3}.a) BODY", "Emit"),
    ("class A {\n  void Emit(Options options = {});\n  int Of(int a = 0, Options options = {}) BODY\n};", "A::Of"),
    ("class A {\n  friend bool Same(A a, A b) BODY\n};", "A::Same"),
    ("class alignas(64) A {\n  void Emit(int a) BODY\n};", "A::Emit"),
    ("class ABSL_LOCKABLE A : public B<int(int)> {\n  int a_ ABSL_GUARDED_BY(mutex_){0};\n"
     "  void Emit(int a) ABSL_LOCKS_EXCLUDED(mutex_) BODY\n};", "A::Emit"),
    ("template <typename T, typename U = std::vector<T>> auto Emit(T a) -> std::vector<U> BODY", "Emit"),
    ("bool operator<(const A& a, const A& b) BODY", "operator"),
    ("namespace a::b {\nextern \"C\" void Emit(int a) BODY\n}", "Emit"),
    ("extern \"C\" {\nvoid Emit(int a) BODY\n}", "Emit"),
    ("KILN_ROW(a, b)\nKILN_ROW(c, \"d\")\nvoid Emit(int a) BODY", "Emit"),
    ("const int kTable[] = {\n    1,\n};\nvoid Emit(int a) BODY", "Emit"),
    ("const auto kEmit = [](int a) -> int BODY;", "kEmit"),
    ("const Row kRows[] = {{1, [](int a) BODY}};", "kRows"),
    ("#define KILN_EMIT(a) \\\n  {                  \\\n    a\nvoid Emit(int a) BODY", "Emit"),
    ("const char kOpen = '{', *kText = \"}}\", *kRaw = R\"x({)\"{)x\"; /* {\n */\nvoid Emit(int a) BODY", "Emit"),
])
def test_a_function_is_counted_wherever_it_stands(text: str, name: str) -> None:
    for lines in (class_sizes.LINES_MAX, class_sizes.LINES_MAX + 1):
        code = class_sizes.code_of(text.replace("BODY", body_of(lines)))
        assert (name, lines) in list(class_sizes.functions(code))


@pytest.mark.parametrize("text", [
    "const int kTable[] = BODY;", "int kTable[3]BODY;", "enum Kind BODY;", "namespace a BODY",
    "class A {\n  int a_ BODY;\n};",
])
def test_what_is_no_function(text: str) -> None:
    assert not list(class_sizes.functions(class_sizes.code_of(text.replace("BODY", "{\n" + "\n" * 70 + "}"))))


@pytest.mark.parametrize("head", [
    "class A", "struct A final", "union A", "class alignas(64) A", "class ABSL_LOCKABLE A", "class EXPORTED A final",
    "class KILN_API(1) A final : public B", "class [[nodiscard]] A", "class __attribute__((packed)) A",
    "class A : public B<int(int)>, private C", "template <> struct A<int>", "struct B::A", "static const struct A",
    "template <typename T, class U = B<T>>\n  requires Small<T>\nclass A", "class B {\n  int b;\n  struct A",
    "void F(Options options = {}) {\n  Step(1);\n  struct A",
])
def test_a_class_is_counted_however_it_begins(head: str) -> None:
    found = {name.split("::")[-1]: rest for name, *rest in class_sizes.classes(class_sizes.code_of(
        class_of(5, 3, head) + "};" * head.count("{\n")))}
    assert found["A"] == [5, 3]


@pytest.mark.parametrize("text, methods, fields", [
    ("  A(const A&) = delete;\n  explicit A(int n) : n_(n), m_{n} {}\n  ~A() override = default;\n", 2, 0),
    ("  using Body = std::function<void(int)>;\n  static constexpr int kMost = Of(3);\n  friend bool Same(A, A);\n",
     0, 0),
    ("  Value *a = nullptr, *b = nullptr;\n  std::map<int, int> c_;\n  Part part_{&k_, &at_};\n", 0, 4),
    ("  struct Inner {\n    int a;\n    int F();\n  };\n  Inner inner_;\n", 0, 1),
    ("  virtual absl::Status Emit(absl::FunctionRef<void(int)> body,\n                            int n) = 0;\n", 1, 0),
    ("  void (*initialize)() = nullptr;  // a field\n", 0, 1),
    ("  void Each(int (*each)(int), int (&of)[3]);\n", 1, 0),
    ("  A() : n_{1}, m_{} {}\n  A(Options a = {}) : n_(1) {}\n  void F(std::vector<int> of = {}) const;\n", 3, 0),
    ("  int a_ ABSL_GUARDED_BY(mutex_) = 0;\n  alignas(64) std::atomic<int> b_{0};\n  int c_[Of(3)], d_{2};\n", 0, 4),
    ("  friend bool Same(A a, A b) { return true; }\n  int a_;\n", 0, 1),
    ("  static constexpr int F(int a) { return a; }\n  static inline constexpr int kMost = 3;\n", 1, 0),
    ("  struct {\n    int a, b;\n  } both_, other_;\n  enum Kind { kA, kB } kind_ = kA;\n  enum class Tone { kC };\n",
     0, 3),
    ("  bool operator==(const A&) const = default;\n  bool operator()(int a) const { return a < 3; }\n"
     "  explicit operator bool() const;\n", 3, 0),
    ("  std::function<int(int)> f_ = [](int a) { return a; };\n  int a_;\n", 0, 2),
])
def test_what_counts(text: str, methods: int, fields: int) -> None:
    sizes = {name: rest for name, *rest in class_sizes.classes(class_sizes.code_of("class A {\n" + text + "};\n"))}
    assert sizes["A"] == [methods, fields]


@pytest.mark.parametrize("text, name, size, other, said", [
    (class_of(50, 3), "Large", (50, 3), (51, 3), "50 methods, 3 fields; tests/class_sizes.py says (51, 3)"),
    ("void Emit(int a) " + body_of(70), "Emit", (70,), (69,), "70 lines; tests/class_sizes.py says (69,)"),
])
def test_an_exception_shrinks_and_goes(tmp_path: pathlib.Path, text: str, name: str, size: tuple[int, ...],
                                       other: tuple[int, ...], said: str) -> None:
    row = f"compiler/codegen/large.cc: {name}"
    assert faults_of(tmp_path, text, {row: size}) == []
    assert faults_of(tmp_path, text, {row: other}) == [f"{row}: {said}"]
    assert faults_of(tmp_path, "", {row: size}) == [f"tests/class_sizes.py: nothing is {row}"]
