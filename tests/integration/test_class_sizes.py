"""No class and no function of the compiler is too large (tests/class_sizes.py); the check sees one that is."""
import os
import shutil
import sys

import pytest

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(TESTS)
sys.path.insert(0, TESTS)
import class_sizes  # noqa: E402 - the path comes first


def test_nothing_is_too_large():
    assert class_sizes.faults(ROOT, class_sizes.LARGER) == []


@pytest.fixture
def copy(tmp_path):
    for folder in class_sizes.FOLDERS:
        shutil.copytree(os.path.join(ROOT, "compiler", folder), tmp_path / "compiler" / folder)
    return tmp_path


def class_of(methods, fields):
    lines = [f"  int F{k}(int a) const {{ return a; }}" for k in range(methods)]
    lines += [f"  std::vector<int> f{k}_;  // not(a, method)" for k in range(fields)]
    return "class Large : public Base {\n public:\n" + "\n".join(lines) + "\n};\n"


def function_of(lines):
    return "void Large::Emit(int a) {\n" + "  Step(a);\n" * (lines - 2) + "}\n"


@pytest.mark.parametrize("text, said", [
    (class_of(class_sizes.METHODS_MAX, class_sizes.FIELDS_MAX), None),
    (class_of(class_sizes.METHODS_MAX + 1, 0), "Large: 41 methods, 0 fields"),
    (class_of(0, class_sizes.FIELDS_MAX + 1), "Large: 0 methods, 16 fields"),
    (function_of(class_sizes.LINES_MAX), None),
    (function_of(class_sizes.LINES_MAX + 1), "Large::Emit: 61 lines"),
])
def test_one_at_the_limit_and_one_beyond(copy, text, said):
    (copy / "compiler" / "codegen" / "large.cc").write_text(text)
    found = class_sizes.faults(copy, class_sizes.LARGER)
    assert [row.split(", of ")[0] for row in found] == ([f"compiler/codegen/large.cc: {said}"] if said else [])


@pytest.mark.parametrize("text, methods, fields", [
    ("  A(const A&) = delete;\n  explicit A(int n) : n_(n), m_{n} {}\n  ~A() override = default;\n", 2, 0),
    ("  using Body = std::function<void(int)>;\n  static constexpr int kMost = Of(3);\n  friend bool Same(A, A);\n",
     0, 0),
    ("  Value *a = nullptr, *b = nullptr;\n  std::map<int, int> c_;\n  Part part_{&k_, &at_};\n", 0, 4),
    ("  struct Inner {\n    int a;\n    int F();\n  };\n  Inner inner_;\n", 0, 1),
    ("  virtual absl::Status Emit(absl::FunctionRef<void(int)> body,\n                            int n) = 0;\n", 1, 0),
    ("  void (*initialize)() = nullptr;  // a field\n", 0, 1),
])
def test_what_counts(text, methods, fields):
    sizes = {name: rest for name, *rest in class_sizes.classes(class_sizes.code_of("class A {\n" + text + "};\n"))}
    assert sizes["A"] == [methods, fields]


def test_an_exception_shrinks_and_goes(copy):
    (copy / "compiler" / "codegen" / "large.h").write_text(class_of(50, 3))
    row = "codegen/large.h: Large"
    for known, said in [((50, 3), []),
                        ((51, 3), [f"compiler/{row}: 50 methods, 3 fields; tests/class_sizes.py says (51, 3)"])]:
        assert class_sizes.faults(copy, {**class_sizes.LARGER, row: known}) == said
    (copy / "compiler" / "codegen" / "large.h").unlink()
    assert class_sizes.faults(copy, {**class_sizes.LARGER, row: (50, 3)}) == [f"tests/class_sizes.py: nothing is {row}"]
