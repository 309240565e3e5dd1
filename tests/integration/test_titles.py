"""Graphs go by the name of what was given to torch.compile, in kiln.explain and in warnings."""
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.symbolic_convert import InstructionTranslator

import kiln
from kiln import titles as kiln_titles


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(self.first(x).relu())
        return y


class Broken(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        y: torch.Tensor = self.second(x)
        return y


def titles(model: Callable[..., Any]) -> list[str]:
    return [program["title"] for program in kiln.explain(model)(torch.randn(2, 4)).programs]


BLOCK = Block()


def mean_of_block(x: torch.Tensor, block: torch.nn.Module = BLOCK) -> torch.Tensor:
    mean: torch.Tensor = block(x).mean()
    return mean


@pytest.mark.parametrize("model, name", [(Block(), "Block"), (torch.nn.Sequential(Block(), Block()), "Sequential"),
                                         (mean_of_block, "mean_of_block"), (Broken(), "Broken")])
def test_titles(model: Callable[..., Any], name: str) -> None:
    with torch.no_grad():
        assert set(titles(model)) == {f"{name} inference"}
    assert set(titles(model)) == {f"{name} forward", f"{name} backward"}


def test_warning_names_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILN_ADDRESS", "unix:/tmp/kiln-nobody-serves-here")
    monkeypatch.setattr(kiln.environment, "_configured", False)
    monkeypatch.setenv("KILN_CONNECT_TIMEOUT", "0.2")
    kiln.fallback.reset()
    try:
        with torch.no_grad(), pytest.warns(RuntimeWarning, match="Block inference runs without kiln"):
            torch.compile(Block(), backend="kiln")(torch.randn(3, 4))
    finally:
        monkeypatch.undo()
        kiln.environment._configured = False


@pytest.mark.parametrize("version", ["2.11", "2.13"])
def test_without_dynamo(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    if version == "2.11":
        monkeypatch.setattr(InstructionTranslator, "current_tx", lambda: None)
    assert kiln_titles.compiled_name() == "graph"
