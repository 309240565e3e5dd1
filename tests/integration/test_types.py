"""What types say of the extension and of records is so: mypy (tests/lint.sh) believes both."""
import ast
import os
from collections.abc import Mapping
from typing import Any, NoReturn

import pytest
import torch

import kiln
from kiln import _C, program_record
from model_checks import programs

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STUB = os.path.join(ROOT, "client", "python", "kiln", "_C.pyi")


def declared() -> dict[str, set[str]]:
    """{name: its methods} of the stub, but for what is a type alone."""
    with open(STUB, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    names = {node.name: {inner.name for inner in node.body if isinstance(inner, ast.FunctionDef)}
             for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    return {name: methods for name, methods in names.items() if name != "RunCounts"}


def public(owner: Any) -> set[str]:
    return {name for name in vars(owner) if not name.startswith("_")}


def test_the_stub_has_what_the_extension_has() -> None:
    stub = declared()
    assert stub.keys() == public(_C)
    assert stub["Artifact"] == public(_C.Artifact) | {"__call__"}
    assert {"build", "get", "ServiceError"} <= stub.keys()


def check(record: Mapping[str, Any], kind: Any) -> None:
    """A record has the keys that its type demands, and no key that the type lacks."""
    assert kind.__required_keys__ <= record.keys() <= kind.__required_keys__ | kind.__optional_keys__


def test_records_are_what_their_types_say(no_fallback: None) -> None:
    start = kiln.records.graph_count()
    torch.compile(lambda x: torch.linalg.qr(x.sin() + 1)[0] @ x, backend="kiln")(torch.randn(6, 6))
    program, = programs(start)
    check(program, program_record.ProgramRecord)
    assert program["kernels"] and program["library_calls"]
    for kernel in program["kernels"]:
        check(kernel, program_record.KernelRecord)


def test_records_of_fallbacks_are_what_their_type_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> NoReturn:
        raise KeyError("planted")

    monkeypatch.setattr(_C, "build", broken)
    start = kiln.records.graph_count()
    with torch._functorch.config.patch(enable_autograd_cache=False):
        torch.compile(lambda x: x.sin() + 17, backend="kiln")(torch.randn(6, 6))
    program, = kiln.records.graphs_since(start)
    check(program, program_record.FallbackRecord)
