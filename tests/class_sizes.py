#!/usr/bin/env python3
"""Classes with many methods or fields, and functions of many lines, in C++ that is no test.
tests/lint.sh and tests/integration/test_class_sizes.py ask `faults` about the sources.

Counted is what stands in the braces of a class, struct or union: every name with parameters is a method (overloads are
one each, constructors too, friends and what is deleted not), every other name a field; types, aliases and constants are
neither. A function is counted wherever it stands: in a namespace, in a class, as a lambda of a variable. This pairs
brackets and is no parser: a declaration is what ends with a semicolon, or with the body of a function or of a type.
"""
import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple

FOLDERS = ("cache", "client", "compiler", "server")
METHODS_MAX = 40
FIELDS_MAX = 15
LINES_MAX = 60  # of a function, from its first word to its last brace

# Larger ones, with what they have: these may only shrink. "file: Class": (methods, fields); "file: function": (lines,).
LARGER: dict[str, tuple[int, ...]] = {}

NOT_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|R\"(\w*)\(.*?\)\1\"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'"
                      r"|^[ \t]*#(?:\\\n|[^\n])*", re.DOTALL | re.MULTILINE)
MACRO = r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]*"
# What stands before a declaration and is none of it: labels, and macros on lines of their own.
BEFORE = re.compile(rf"(?:\s|\b(?:public|private|protected)\s*:(?!:)|{MACRO}(?:\([^()]*\))?[ \t]*\n)*")
OPERATOR = re.compile(r"\boperator\s*(?:\(\s*\)|\[\s*\]|[^\w\s(]+)")
# Brackets that are no parameters.
SPECIFIER = re.compile(rf"(?:\b(?:alignas|decltype|explicit|noexcept|requires|__attribute__)|{MACRO})\s*\(\*?\)"
                       r"|\[\*?\]")
SCOPE = re.compile(r"(?:inline )?namespace\b|extern$")
TYPE = re.compile(r"\b(class|struct|union|enum(?: class| struct)?)(?: [A-Z][A-Z0-9_]+(?= \w))*"
                  r"(?: (\w+(?:::\w+)*))??(?: final)?(?: ?(?<!:):(?!:).*)?$")
PARAMETERS = re.compile(r"(~?\w+(?:::~?\w+)*) ?\((?!\*)")
INITIALIZERS = re.compile(r"\).*?(?<!:):(?!:)")
CONSTANT = re.compile(r"(?:static |inline )*constexpr\b")
NOT_A_MEMBER = re.compile(r"(?:using|typedef|friend|static_assert)\b")
NEXT = re.compile(r"[;(\[{]")  # what ends a declaration, or is to be passed over
# Its brackets follow no name, as an array's do.
LAMBDA = re.compile(r"(?<![\w\])])\[[^\[\]]*\](?:\s*\([^;{}]*\))?[\w\s:<>*&-]*\{")


class Declaration(NamedTuple):
    kind: str  # scope, class, enum, function, variable
    name: str
    plain: str  # all before its body, as `plain_of` gives it
    start: int
    end: int
    body: tuple[int, int] | None  # what its braces enclose; of a variable's none


def code_of(text: str) -> str:
    """The text without comments, strings and directives; lines stay where they are."""
    return NOT_CODE.sub(lambda match: "\n" * match[0].count("\n"), text)


def closes_of(code: str) -> dict[int, int]:
    """{where a bracket opens: where it closes}. Raises ValueError where one has no other."""
    closes, opened = {}, []
    for match in re.finditer(r"[()\[\]{}]", code):
        if match[0] in "([{":
            opened.append(match.start())
        elif not opened or code[opened[-1]] + match[0] not in ("()", "[]", "{}"):
            raise ValueError(code.count("\n", 0, match.start()) + 1)
        else:
            closes[opened.pop()] = match.start()
    if opened:
        raise ValueError(code.count("\n", 0, opened[-1]) + 1)
    return closes


def plain_of(head: str) -> str:
    """A declaration without templates' arguments and what brackets enclose: of a pointer in them, `*` is left."""
    plain, depth = [], 0
    head = OPERATOR.sub("operator", head)
    for place, one in enumerate(head):
        depth -= one in ")]}"
        if depth == 0:
            plain.append(one)
        if one in "([{":
            if depth == 0 and re.match(r"\s*(?:\w+::)*[*&]", head[place + 1:]):
                plain.append("*")
            depth += 1
    text = re.sub(r"<<|<=|->", " ", "".join(plain))
    while text != (text := re.sub(r"<[^<>]*>", "", text)):
        pass
    # A macro that is all there is defines a function.
    text = " ".join((SPECIFIER.sub("", text).strip() or text).split())
    return re.sub(r"^(?:template )+", "", text)


def kind_of(plain: str) -> tuple[str, str]:
    """(kind, name) of a declaration."""
    if SCOPE.match(plain):
        return "scope", ""
    # The value of a variable, or that of its braces, says nothing.
    declared = re.split(r"=|\{", plain)[0]
    if parameters := PARAMETERS.search(declared):
        return "function", parameters[1]
    if named := TYPE.search(declared):
        return named[1].split()[0].replace("struct", "class").replace("union", "class"), named[2] or "(unnamed)"
    return "variable", (re.findall(r"\w+", declared) or [""])[-1]


def has_body(kind: str, plain: str) -> bool:
    """Are the braces that come next a body? Else they are a value, or one of a constructor's initializers."""
    return kind != "variable" and not (kind == "function" and INITIALIZERS.search(plain) and re.search(r"\w$", plain))


def after_labels(code: str, begin: int, end: int) -> int:
    """Where a declaration starts that stands between two places."""
    before = BEFORE.match(code, begin, end)
    assert before  # it matches nothing too
    return before.end()


def declarations(code: str, closes: dict[int, int], begin: int, end: int) -> Iterator[Declaration]:
    """What is declared between two places, outside of any function."""
    place = begin
    while match := NEXT.search(code, place, end):
        at = match.start()
        place = closes.get(at, at) + 1
        if match[0] in "([":
            continue
        start = after_labels(code, begin, at)
        plain = plain_of(code[start:at])
        kind, name = kind_of(plain)
        if match[0] == ";":
            yield Declaration(kind, name, plain, start, place, None)
        elif has_body(kind, plain):
            yield Declaration(kind, name, plain, start, place, (at + 1, place - 1))
        else:
            continue
        begin = place


def members(code: str, closes: dict[int, int], body: tuple[int, int]) -> tuple[int, int]:
    """(methods, fields) of a class's body."""
    methods = fields = 0
    for one in declarations(code, closes, *body):
        if not one.plain or NOT_A_MEMBER.match(one.plain):
            continue
        if one.kind == "function":
            methods += re.search(r"= ?delete$", one.plain) is None
        elif one.kind == "variable" and not CONSTANT.match(one.plain):
            fields += 1 + one.plain.count(",")
    return methods, fields


def classes(code: str) -> Iterator[tuple[str, int, int]]:
    """(name, methods, fields) of every class that is defined in it: in another, in a function as well."""
    closes = closes_of(code)
    for match in re.finditer(r"\{", code):
        begin = max(code.rfind(one, 0, match.start()) for one in ";{}") + 1
        plain = plain_of(code[after_labels(code, begin, match.start()):match.start()])
        kind, name = kind_of(plain)
        if kind == "class" and has_body(kind, plain):
            yield name, *members(code, closes, (match.end(), closes[match.start()]))


def functions(code: str) -> Iterator[tuple[str, int]]:
    """(name, lines) of every function that is defined in it, outside of another."""
    closes = closes_of(code)
    yield from functions_between(code, closes, 0, len(code), "")


def functions_between(code: str, closes: dict[int, int], begin: int, end: int, outer: str) -> Iterator[tuple[str, int]]:
    """`outer`: the classes around them, with the colons."""
    for one in declarations(code, closes, begin, end):
        if one.kind == "function" and one.body:
            yield outer + one.name, code.count("\n", one.start, one.end) + 1
        elif one.kind in ("scope", "class") and one.body:
            inner = outer + one.name + "::" if one.kind == "class" else outer
            yield from functions_between(code, closes, *one.body, inner)
        elif one.kind == "variable":
            for match in LAMBDA.finditer(code, one.start, one.end):
                yield outer + one.name, code.count("\n", match.start(), closes[match.end() - 1]) + 1


def sources(root: str | os.PathLike[str]) -> Iterator[tuple[str, str]]:
    for folder in FOLDERS:
        for directory, folders, names in os.walk(os.path.join(root, folder)):
            folders.sort()
            for name in sorted(names):
                if name.endswith((".h", ".cc")):
                    path = os.path.join(directory, name)
                    yield os.path.relpath(path, root).replace(os.sep, "/"), path


def faults(root: str | os.PathLike[str], larger: Mapping[str, tuple[int, ...]]) -> list[str]:
    """What is wrong, a line each."""
    found: list[str] = []
    used: set[str] = set()
    for file, path in sources(root):
        with open(path, encoding="utf-8") as source:
            code = code_of(source.read())
        try:
            sizes: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = [
                (f"{file}: {name}", (methods, fields), (METHODS_MAX, FIELDS_MAX))
                for name, methods, fields in classes(code)]
            sizes += [(f"{file}: {name}", (lines,), (LINES_MAX,)) for name, lines in functions(code)]
        except ValueError as error:
            found.append(f"{file}: a bracket without the other in line {error}")
            continue
        for row, size, most in sizes:
            if all(one <= limit for one, limit in zip(size, most)):
                continue
            used.add(row)
            said = "{} methods, {} fields".format(*size) if len(size) == 2 else f"{size[0]} lines"
            if row not in larger:
                found.append(f"{row}: {said}, of {' and '.join(map(str, most))} at most")
            elif larger[row] != size:
                found.append(f"{row}: {said}; tests/class_sizes.py says {larger[row]}")
    return found + [f"tests/class_sizes.py: nothing is {row}" for row in sorted(larger.keys() - used)]


def main() -> None:
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = faults(root, LARGER)
    print("\n".join(found) or "class sizes: within the limits", file=sys.stderr if found else sys.stdout)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
