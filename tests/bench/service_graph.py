#!/usr/bin/env python3
"""Writes what kiln's client would send for the training of BERT-base and for a small network, with kiln's Python:

  .venv/bin/python tests/bench/service_graph.py DIRECTORY

    train.header, train.graph   the largest of BERT's graphs: a CompileHeader and the canonical graph
    small.header, small.graph   of two layers, and small.key, its RequestKey
"""
import os
import sys
from collections.abc import Callable
from typing import Any

# Nobody compiles: a graph is complete when it would be sent.
os.environ.update(KILN_ADDRESS="unix:/nonexistent/kilnd.sock", KILN_FALLBACK="eager")

import torch

import kiln
import models
from kiln import backend


class Recorder:
    """Stands for kiln._C while a model is traced."""

    def __init__(self, extension: Any) -> None:
        self._extension = extension
        self.requests: list[tuple[bytes, bytes, bytes]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._extension, name)

    def build(self, *arguments: Any) -> Any:
        made = self._extension.build(*arguments)
        self.requests.append(made[:3])  # key, header, graph
        return made


def largest(step: Callable[[], None]) -> tuple[bytes, bytes, bytes]:
    here: Any = backend
    recorder = here._C = Recorder(getattr(here._C, "_extension", here._C))
    step()
    if not recorder.requests:
        raise SystemExit("service_graph.py: kiln was asked for nothing")
    return max(recorder.requests, key=lambda request: len(request[2]))


def train() -> None:
    model, inputs = models.build("bert", "train")
    compiled = torch.compile(model, backend="kiln", dynamic=False)
    compiled(**inputs).loss.backward()


def small() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
    with torch.no_grad():
        torch.compile(network, backend="kiln", dynamic=False)(torch.randn(4, 32))


def main(directory: str) -> None:
    for name, step in (("train", train), ("small", small)):
        for part, value in zip(("key", "header", "graph"), largest(step), strict=True):
            with open(os.path.join(directory, f"{name}.{part}"), "wb") as file:
                file.write(value)
    print(f"traced with torch {torch.__version__} and kiln {kiln.__version__}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1])
