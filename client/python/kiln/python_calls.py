"""Calls of Python in the middle of a program: what the compiler can't express runs there, the rest stays native.

graph_cut.py makes them. The program gives a call tensors and integers, and takes from it the tensors that native nodes
read. Every other value (an unknown dtype, a number that the program can't evaluate, a nested tensor) lies in
the run's `Frame`, under a number; a result of no elements orders the calls that pass such values on.

A call is found by its number in the graph, so nothing of it travels but a digest of what it runs (written_graph.py).
Threads: a frame belongs to one run, on one thread; calls are immutable but for their counters.
Errors: what a call raises reaches the caller as it is.
"""
from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Set
from typing import Any, Protocol, TypeAlias

import torch
from torch import fx

from . import fallback, written_graph
from .fallback import Boxed
from .inductor_calls import InductorCall
from .program_record import ProgramRecord, PythonCallRecord

PREFIX = "kiln_python.call.n"

TOKEN = torch.empty(0, dtype=torch.uint8)  # of no elements: says that a call has run

TENSOR, SIZE, HELD = range(3)  # where an operand comes from
GIVEN = -1  # the place of a result that the program takes; others are slots of the frame


# (TENSOR, position | SIZE, position | HELD, slot, whether the graph has it on the CPU)
Operand: TypeAlias = tuple[int, int, bool]


class Region(Protocol):
    """A sub-graph by itself: a CompiledGraph, or a FallbackGraph."""

    def __call__(self, inputs: list[Any]) -> Any: ...

    def why_not_kept(self) -> str | None: ...


@dataclasses.dataclass(eq=False)
class PythonCall:
    """One call: the graph that it runs, and where its operands and results lie."""

    number: int
    module: fx.GraphModule
    reason: str
    operators: tuple[str, ...]  # for people
    operands: tuple[Operand, ...] = ()
    results: tuple[int, ...] = ()  # GIVEN, or a slot of the frame
    gpu: torch.device | None = None  # of the program
    by_inductor: bool = False
    regions: tuple[Region, ...] = ()  # of the sub-graphs that sub_graphs finds in `module`
    runs: int = 0
    seconds: float = 0.0

    __name__ = "python_call"  # for torch.fx, whose targets have one

    def __post_init__(self) -> None:
        self.name = f"{PREFIX}{self.number}"
        self._run: Boxed | None = None

    @property
    def title(self) -> str:
        """For people; another one for each call of a graph."""
        return f"Python {self.number}: {', '.join(self.operators)}{' by TorchInductor' if self.by_inductor else ''}"

    @property
    def digest(self) -> str:
        return written_graph.digest(self.module)

    def __call__(self, frame: Frame, tensors: list[torch.Tensor], sizes: list[int]) -> list[torch.Tensor | None]:
        start = time.perf_counter()
        try:
            return self._results(frame, tensors, sizes)
        except Exception as error:
            if hasattr(error, "add_note"):  # Python 3.11
                error.add_note(f"kiln: raised by {self.title}, which kiln leaves to PyTorch: {self.reason}")
            raise
        finally:
            self.runs += 1
            self.seconds += time.perf_counter() - start

    def _results(self, frame: Frame, tensors: list[torch.Tensor], sizes: list[int]) -> list[torch.Tensor | None]:
        if self._run is None:
            self._run = InductorCall(self.module) if self.by_inductor else fallback.boxed(self._with_regions())
        memories: set[int] = set().union(*map(memory_of, tensors))
        operands = [self._operand(frame, tensors, sizes, *operand) for operand in self.operands]
        del tensors
        with torch.no_grad():
            results = self._run(operands)
        given: list[torch.Tensor | None] = []
        for value, slot in zip(results, self.results):
            value = own(value, memories)
            if slot == GIVEN:
                given.append(value if self.gpu is None or value is None else value.to(self.gpu))
                memories |= memory_of(value)
            else:
                frame.put(slot, value)
        given.append(TOKEN if self.gpu is None else torch.empty_like(TOKEN, device=self.gpu))
        return given

    def _with_regions(self) -> fx.GraphModule:
        """The graph, with what is compiled of its sub-graphs in their places."""
        module = fx.GraphModule(self.module, self.module.graph)
        for (target, _), region in zip(sub_graphs(self.module), self.regions):
            if isinstance(getattr(module, target), fx.GraphModule):  # several nodes may hold one
                delattr(module, target)
                setattr(module, target, _as_function(region))
        return module

    @staticmethod
    def _operand(frame: Frame, tensors: list[torch.Tensor], sizes: list[int], kind: int, position: int,
                 on_cpu: bool) -> Any:
        if kind == HELD:
            return frame.take(position)
        if kind == SIZE:
            return sizes[position]
        return tensors[position].cpu() if on_cpu else tensors[position]

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state.update(module=written_graph.write(self.module), _run=None, runs=0, seconds=0.0)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, module=written_graph.read(state["module"]))


# Operators that call their sub-graphs as they are, on the tensors that they were traced with.
_WITH_REGIONS = ("cond", "while_loop", "map_impl", "invoke_subgraph", "scan")


def sub_graphs(module: fx.GraphModule) -> list[tuple[str, fx.GraphModule]]:
    """[(attribute, GraphModule)] of the sub-graphs that may be compiled by themselves, one a node that holds one. One
    that takes a plain number runs as it is: nothing says of which dtype the number is."""
    found = []
    for node in module.graph.nodes:
        users = [user.target for user in node.users]
        if node.op != "get_attr" or not all(isinstance(target, torch._ops.HigherOrderOperator)
                                            and target.name() in _WITH_REGIONS for target in users):
            continue
        held = written_graph.attribute(module, node.target)
        if not isinstance(held, fx.GraphModule):
            continue
        takes_constants = any("val" not in taken.meta for taken in held.graph.find_nodes(op="placeholder"))
        if isinstance(list(held.graph.nodes)[-1].args[0], (tuple, list)) and not takes_constants:
            found.append((node.target, held))
    return found


def _as_function(region: Region) -> Callable[..., tuple[Any, ...]]:
    def run(*arguments: object) -> tuple[Any, ...]:
        return tuple(region(list(arguments)))

    return run


def own(result: Any, memories: Set[int]) -> Any:
    """`result` in memory of its own, as it is to be read: programs write over dead arguments, and know no lazy bits."""
    if not isinstance(result, torch.Tensor):
        return result
    if result.layout == torch.strided:
        result = result.clone() if result._is_zerotensor() else result.resolve_conj().resolve_neg()
    return result.clone() if memories & memory_of(result) else result


def memory_of(value: Any) -> set[int]:
    """The storage of a tensor, also of a fake one; nothing of another value."""
    try:
        return {value.untyped_storage()._cdata}
    except (AttributeError, RuntimeError, NotImplementedError):  # no tensor, or none with one memory
        return set()


# ---- while a program runs


class Frame:
    """The values of one run that the program does not hold. A value goes when its last reader has taken it."""

    def __init__(self, part: PythonPart) -> None:
        self.calls = part.calls
        self._part = part
        self._readers = list(part.readers)
        self._start = 0.0
        self._values: dict[int, Any] = {}

    def put(self, slot: int, value: Any) -> None:
        if self._readers[slot]:
            self._values[slot] = value

    def take(self, slot: int) -> Any:
        self._readers[slot] -= 1
        return self._values[slot] if self._readers[slot] else self._values.pop(slot)

    def __enter__(self) -> Frame:
        _frames.stack.append(self)
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self._part.note_run(time.perf_counter() - self._start)
        _frames.stack.pop()


class _Frames(threading.local):
    """Of this thread: the runs that it is in, the innermost last."""

    def __init__(self) -> None:
        self.stack: list[Frame] = []


_frames = _Frames()


def run(target: str, arguments: dict[str, Any]) -> list[torch.Tensor | None]:
    """A call of the program that runs on this thread, as the runtime makes it."""
    frame = _frames.stack[-1]
    call = frame.calls[int(target[len(PREFIX):])]
    return call(frame, arguments.get("operands", []), arguments.get("sizes", []))


@dataclasses.dataclass(eq=False)
class PythonPart:
    """What a compiled graph has in Python."""

    calls: tuple[PythonCall, ...] = ()
    readers: tuple[int, ...] = ()  # by slot of the frame: how often it is read
    # (position, slot, whether the program has it too) of the graph's inputs that lie in the frame
    inputs: tuple[tuple[int, int, bool], ...] = ()
    outputs: tuple[tuple[int, int], ...] = ()  # (position, slot) of the graph's outputs that lie there
    output_count: int = 0  # of the graph; the program's further ones only keep calls alive
    seconds: float = 0.0  # that the runs took, native steps too
    told: list[PythonCallRecord] = dataclasses.field(default_factory=list)  # the calls in the program's record

    def holds(self, position: int) -> bool:
        """Whether the program lacks the graph's input."""
        return any(held == position and not shared for held, _, shared in self.inputs)

    def begin(self, inputs: list[Any]) -> Frame:
        """The frame of a run; takes what it holds from `inputs`."""
        frame = Frame(self)
        for position, slot, shared in self.inputs:
            frame.put(slot, inputs[position])
            if not shared:
                inputs[position] = 0
        return frame

    def finish(self, frame: Frame, outputs: list[Any]) -> list[Any]:
        """The graph's outputs, from the program's."""
        del outputs[self.output_count:]
        for position, slot in self.outputs:
            outputs[position] = frame.take(slot)
        return outputs

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "seconds": 0.0, "told": []}

    def reasons(self) -> str:
        return "; ".join(dict.fromkeys(call.reason for call in self.calls))

    def add_to(self, record: ProgramRecord) -> None:
        """Tells a program's record of the calls, which the service takes for library calls."""
        record["library_calls"] = [target for target in record["library_calls"] if not target.startswith(PREFIX)]
        self.told = [{"name": call.title, "reason": call.reason, "operators": call.operators, "share": 0.0}
                     for call in self.calls]
        record["python_calls"] = self.told

    def note_run(self, seconds: float) -> None:
        """A run took so long, native steps and all; the calls' shares of all runs stand in the program's record."""
        self.seconds += seconds
        for call, record in zip(self.calls, self.told):
            record["share"] = call.seconds / self.seconds

    def native_regions(self) -> list[Region]:
        """The compiled sub-graphs of the calls."""
        return list(dict.fromkeys(region for call in self.calls for region in call.regions))

    def why_not_kept(self) -> str | None:
        """What a call holds that torch's cache can't; None where it can."""
        for region in self.native_regions():
            if reason := region.why_not_kept():
                return reason
        try:
            for call in self.calls:
                written_graph.write(call.module)
        except written_graph.NotWritable as error:
            return f"a call of Python holds {error}"
        return None
