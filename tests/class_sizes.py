#!/usr/bin/env python3
"""Classes with many methods or fields, and functions of many lines, in the compiler. tests/lint.sh and
tests/integration/test_class_sizes.py ask `faults` about the sources.

Counted is what stands in the braces of a class or struct: every name with parameters is a method (overloads are one
each, constructors too, friends and what is deleted not), every other name a field; types, aliases and constants are
neither. It reads clang-format's layout, not C++: a declaration is what ends with a semicolon or a body.
"""
import os
import re
import sys

FOLDERS = ("artifact", "channel", "codegen", "frontend", "graph", "image", "ir", "library", "lower", "passes",
           "schedule", "support", "target", "worker")
METHODS_MAX = 40
FIELDS_MAX = 15
LINES_MAX = 60  # of a function, from its name to its last brace

# Larger ones, with what they have: these may only shrink. "file: Class": (methods, fields); "file: function": lines.
LARGER = {
    "graph/expr.h: ExprPool": (50, 11),             # a method an operator
    "lower/loop_recorder.h: LoopRecorder": (52, 5),  # a method an operator
    "schedule/skinny_schedule.h: SkinnyShape": (16, 22),
}

CLASS = re.compile(r"\b(?:class|struct)\s+(?:\[\[\w+\]\]\s*)?(\w+(?:::\w+)*)\s*(?:final\s*)?(?::[^{;]*)?$")
NOT_A_MEMBER = re.compile(r"^(?:using|typedef|friend|enum|static constexpr|static_assert|template<>|public|private"
                          r"|protected)\b")
LABEL = re.compile(r"\b(?:public|private|protected)\s*:(?!:)")


def code_of(text):
    """The text without comments, strings, attributes and directives; lines stay where they are."""
    text = re.sub(r"//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'", "", text)
    return re.sub(r"^#[^\n]*", "", text, flags=re.MULTILINE)


def close_of(code, start):
    """Where the brace at `start` closes."""
    depth = 0
    for place in range(start, len(code)):
        depth += (code[place] == "{") - (code[place] == "}")
        if depth == 0:
            return place
    return len(code)


def members(body):
    """(methods, fields) of a class's body."""
    methods = fields = 0
    place = start = 0
    while place < len(body):
        if body[place] == "{":
            head = LABEL.sub("", body[start:place]).strip()
            place = close_of(body, place)
            # A body ends a method or a nested type. A field's braces are followed by its semicolon, and those of a
            # constructor's initializers by the next one or by its body.
            if is_method(head):
                if not re.match(r"\s*[,{]", body[place + 1:]):
                    methods += 1
                    start = place + 1
            elif re.match(r"(?:class|struct|enum|union)\b", head):
                start = body.find(";", place) + 1
        elif body[place] == ";":
            head = LABEL.sub("", body[start:place]).strip()
            if head and not NOT_A_MEMBER.match(head) and not re.match(r"(?:class|struct)\s+\w+$", head):
                if is_method(head):
                    methods += "= delete" not in head
                else:
                    fields += 1 + head.count(",") * (not re.search(r"[<({]", head))
            start = place + 1
        place += 1
    return methods, fields


def is_method(head):
    """Has the declaration a list of parameters? Those of a type's or an initializer's parentheses are none."""
    head = re.sub(r"^template\s*<[^>]*>\s*", "", head)
    if NOT_A_MEMBER.match(head):
        return False
    plain = head.split(" = ")[0].split("{")[0]
    while re.search(r"<[^<>]*>", plain):
        plain = re.sub(r"<[^<>]*>", "", plain)
    return bool(re.search(r"[\w=\]+*/-]\s*\(", plain)) and not re.search(r"\(\s*\*\s*\w*\s*\)\s*\(", plain)


def classes(code):
    """(name, methods, fields) of every class that is defined in it, nested ones included."""
    for match in re.finditer(r"\{", code):
        head = re.split(r"[;{}]", code[:match.start()])[-1].strip()
        head = LABEL.sub("", head).strip()
        if "(" in head.split(":")[0] or not (name := CLASS.search(head)):
            continue
        yield name[1], *members(code[match.start() + 1:close_of(code, match.start())])


def functions(code):
    """(name, lines) of every function that is defined at the outermost level of a file as clang-format lays it out."""
    for match in re.finditer(r"^(?=[A-Za-z~])[^\n;{}]*(?:\n[^\n;{}]+)*\{$", code, flags=re.MULTILINE):
        head = match[0]
        if re.match(r"(?:namespace|class|struct|enum|union|extern)\b", head) or "(" not in head:
            continue
        name = re.search(r"(~?\w+(?:::~?\w+)*|operator\S+?)\s*\(", head)
        end = close_of(code, match.end() - 1)
        yield name[1], code.count("\n", match.start(), end) + 1


def faults(root, larger):
    """What is wrong, a line each."""
    found, used = [], set()
    for folder in FOLDERS:
        directory = os.path.join(root, "compiler", folder)
        for file in sorted(os.listdir(directory)):
            if not file.endswith((".h", ".cc")):
                continue
            with open(os.path.join(directory, file), encoding="utf-8") as source:
                code = code_of(source.read())
            sizes = [(f"{folder}/{file}: {name}", (methods, fields), (METHODS_MAX, FIELDS_MAX))
                     for name, methods, fields in classes(code)]
            sizes += [(f"{folder}/{file}: {name}", (lines,), (LINES_MAX,)) for name, lines in functions(code)]
            for row, size, most in sizes:
                if all(one <= limit for one, limit in zip(size, most)):
                    continue
                used.add(row)
                said = "{} methods, {} fields".format(*size) if len(size) == 2 else f"{size[0]} lines"
                if row not in larger:
                    found.append(f"compiler/{row}: {said}, of {' and '.join(map(str, most))} at most")
                elif larger[row] != size:
                    found.append(f"compiler/{row}: {said}; tests/class_sizes.py says {larger[row]}")
    return found + [f"tests/class_sizes.py: nothing is {row}" for row in sorted(larger.keys() - used)]


def main():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = faults(root, LARGER)
    print("\n".join(found) or "class sizes: within the limits", file=sys.stderr if found else sys.stdout)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
