"""What AOTAutograd gets for a graph that the service compiled; fallback_graph.py has what it gets for others.

It is torch OutputCode, so that torch's AOTAutograd cache can keep it. A cached CompiledGraph holds the key of its
program, not the program: loading looks it up at the service, and a miss makes torch trace again.
"""
from __future__ import annotations

import dataclasses
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache, FXGraphCacheMiss
from torch._guards import CompileId
from torch._inductor.output_code import OutputCode
from torch._inductor.utils import InputType

from . import _C, cuda_graphs, debug, devices, environment, fallback, gang, library, records, stale
from .errors import Unsupported
from .fallback import Boxed
from .program_record import ProgramRecord
from .python_calls import PythonPart
from .size_numbers import Place, read_size
from .symbols import SYMBOL, evaluate, values_of

_lock = threading.Lock()
_live: weakref.WeakSet[CompiledGraph] = weakref.WeakSet()

Use: TypeAlias = Callable[[], None]  # to be called where a loaded program is to be used


def live_graphs() -> list[CompiledGraph]:
    with _lock:
        return list(_live)


def live_programs() -> list[tuple[CompiledGraph, _C.Artifact]]:
    """The graphs that have their program."""
    return [(graph, artifact) for graph in live_graphs() if (artifact := graph.artifact) is not None]


def symbols_by_name(inputs: Iterable[Any]) -> dict[str, torch.SymInt]:
    """The symbolic integers among `inputs` and their sizes, by the name of the symbol they are."""
    found: dict[str, torch.SymInt] = {}
    for value in inputs:
        parts = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)
        for part in parts:
            if isinstance(part, torch.SymInt):
                expr = getattr(part.node, "expr", None)  # the ragged size of a nested tensor has none
                if expr is not None and expr.is_Symbol:
                    found.setdefault(str(expr), part)
    return found


@dataclasses.dataclass(eq=False)
class CompiledGraph(OutputCode):
    """A graph that the service compiled; takes its inputs in a list, which it empties."""

    request_key: bytes
    header: bytes
    symbol_names: tuple[str, ...]  # of the program's symbols, in order
    unbacked_hints: tuple[int | None, ...]  # for those that are unbacked; else None
    constants: tuple[torch.Tensor, ...]  # tensors that follow the inputs of every call
    title: str
    # (position, value or function of the inputs) of what the program leaves undefined
    other_outputs: tuple[tuple[int, Any], ...] = ()
    truths: tuple[int, ...] = ()  # positions of outputs that the program gives as 0 or 1
    float_inputs: tuple[int, ...] = ()  # positions of numbers that the program takes as tensors
    cacheable: bool = True  # by torch's cache
    gpu: torch.device | None = None  # None: the CPU
    from_cpu: tuple[int, ...] = ()  # positions of the inputs that go to the GPU first
    to_cpu: tuple[int, ...] = ()  # positions of the outputs that come from there
    more_sizes: tuple[Place, ...] = ()  # of the integers that follow the inputs, before the constants
    python: PythonPart | None = None  # None: all is native
    recording: cuda_graphs.Recording | None = None  # where CUDA graphs are wanted
    for_inference: bool = False
    inner: bool = False  # a part, or a sub-graph of a call of Python: torch knows nothing of its outputs
    donated: tuple[int, ...] = ()  # positions of the inputs that the program may write into
    artifact: _C.Artifact | None = None
    compile_id: CompileId | None = None  # of Dynamo's compile that this belongs to

    __hash__ = object.__hash__  # the base class compares by value
    __eq__ = object.__eq__

    def __post_init__(self) -> None:
        self._fx_graph_cache_key = self.request_key.hex()
        self._time_taken_ns = 0
        # On the instance: torch's wrappers copy its dictionary.
        self._boxed_call = True

    def __call__(self, inputs: list[Any]) -> Any:  # type: ignore[override]  # a list that is its own: _boxed_call
        if self.donated and torch._C._autograd._get_current_graph_task_keep_graph():
            _keep(inputs, self.donated)
        try:
            if (self.other_outputs or self.truths or self.float_inputs or self.from_cpu or self.to_cpu
                    or self.python is not None):
                return self._call_with_others(inputs)
            return self._run(inputs)
        except _C.Contradiction as error:
            stale.drop(self.request_key, self.compile_id, str(error))
            raise

    def _call_with_others(self, inputs: list[Any]) -> list[Any]:
        others = [(position, value(inputs) if callable(value) else value) for position, value in self.other_outputs]
        sizes = [read_size(inputs, *place) for place in self.more_sizes]
        frame = self.python.begin(inputs) if self.python is not None else None
        for position in self.float_inputs:
            inputs[position] = torch.tensor(inputs[position], dtype=torch.float64)
        if self.gpu is not None:
            for position in self.from_cpu:
                inputs[position] = devices.brought_to(self.gpu, inputs[position])
        inputs.extend(sizes)
        if self.python is None or frame is None:
            outputs = list(self._run(inputs))
        else:
            with frame:
                outputs = list(self._run(inputs))
            self.python.finish(frame, outputs)
        for position, other in others:
            outputs[position] = other
        for position in self.truths:
            outputs[position] = bool(outputs[position])
        for position in self.to_cpu:
            outputs[position] = devices.brought_back(outputs[position])
        return outputs

    def load(self, graph: bytes, symbols: Mapping[str, torch.SymInt]) -> Use:
        """Gets the program: compiled if `graph` (canonical bytes) is given, else only looked up. What it returns is
        called where the program is to be used, to count it and to tell torch of it.

        `symbols` as from symbols_by_name. Raises _C.ServiceError, or Unsupported when the program does not fit."""
        self.compile_id = torch._guards.CompileContext.current_compile_id()
        values, hints = self._sizes(symbols)
        start = time.perf_counter()
        artifact = _C.get(self.request_key, self.header, graph, hints, environment.interpret_list(), debug.wanted(),
                          *gang.current())
        return self._adopt(artifact, values, start)

    def ask_again(self, graph: bytes, symbols: Mapping[str, torch.SymInt]) -> Callable[[], Use | None]:
        """As load, for a graph that load had no answer for, on a background thread. What it returns is called under
        retry.py's lock, and gives None where torch has to retrace: a program that is recorded in CUDA graphs, or
        that holds for sizes which torch's guards do not ask for. Raises as load does."""
        values, hints = self._sizes(symbols)
        start = time.perf_counter()
        artifact = _C.get(self.request_key, self.header, graph, hints, environment.interpret_list(), debug.wanted(),
                          b"", 0, True)

        def adopt() -> Use | None:
            known = _guard_count(values)
            if self.recording is not None:
                return None
            use = self._adopt(artifact, values, start)
            return use if _guard_count(values) == known else None

        return adopt

    def _sizes(self, symbols: Mapping[str, torch.SymInt]) -> tuple[list[torch.SymInt | None], list[int]]:
        """(the symbols of the program, None for unbacked ones; what stands for them when it is compiled)"""
        values: list[torch.SymInt | None] = []
        hints: list[int] = []
        for name, hint in zip(self.symbol_names, self.unbacked_hints):
            value = symbols.get(name) if hint is None else None
            if value is not None:
                hint = int(value.node.hint)
            if hint is None:
                raise Unsupported("a symbol of the graph is not among its inputs")
            values.append(value)
            hints.append(hint)
        return values, hints

    def _adopt(self, artifact: _C.Artifact, values: Sequence[torch.SymInt | None], start: float) -> Use:
        """Makes it what the graph runs; it was asked for at `start`."""
        debug.write(self.title, self.request_key, artifact)
        nodes, conditions, _ = artifact.guards()
        # What the service specialised on becomes a guard of torch's own; what the graph's guards say already is.
        if conditions and not evaluate(nodes, conditions, values):
            raise Unsupported("the program does not fit the sizes at hand")
        info = artifact.info()
        info["title"] = self.title
        taken = time.perf_counter() - start
        self._run = _runner(artifact, self.constants, self.gpu)
        if self.for_inference and self.gpu is None:
            _C.keep_freed_memory()
        if self.recording is not None:
            self._run = cuda_graphs.wrap(self._run, self.recording, self.constants, info)
        context = torch._guards.TracingContext.try_get()
        strides = _output_strides(artifact, values) if context is not None else []
        if self.python is not None:
            del strides[self.python.output_count:]
            self.python.add_to(info)
        self.artifact = artifact

        def use() -> None:
            _record(info)
            records.add_seconds("load", taken - info["connect_seconds"] - info["compile_seconds"])
            if (not self.inner and context is not None and context.output_strides is not None
                    and not context.output_strides):
                context.output_strides.extend(strides)
            with _lock:
                _live.add(self)

        return use

    # ---- torch's cache

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state["artifact"] = state["compile_id"] = None
        state.pop("_run", None)
        return state

    def why_not_kept(self) -> str | None:
        """Why torch's cache can't have the graph; None where it can."""
        if not self.cacheable:
            return "a graph is specialised for the value of a float"
        return self.python.why_not_kept() if self.python is not None else None

    def prepare_for_serialization(self) -> None:
        if reason := self.why_not_kept():
            records.count("autograd_cache_bypasses")
            raise BypassAOTAutogradCache(reason)
        self.artifact = None

    def post_compile(self, example_inputs: Sequence[InputType], constants: Any, graph_kwargs: Any) -> None:
        try:
            symbols = symbols_by_name(example_inputs)
        except Exception as error:  # whatever it is, torch retraces
            raise FXGraphCacheMiss(str(error)) from error
        self.load_again(symbols)

    def load_again(self, symbols: Mapping[str, torch.SymInt]) -> None:
        """Gets the program of a graph that torch's cache kept. Raises FXGraphCacheMiss where it is no more."""
        if debug.wanted():
            raise FXGraphCacheMiss("KILN_DEBUG recompiles")
        try:
            environment.configure()
            library.install()
            for region in self.python.native_regions() if self.python is not None else ():
                cast(CompiledGraph, region).load(b"", symbols)()  # one that runs without kiln is never kept
            self.load(b"", symbols)()
        except Exception as error:  # whatever it is, torch retraces
            raise FXGraphCacheMiss(str(error)) from error
        records.count("autograd_cache_loads")

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        pass


def _keep(inputs: list[Any], donated: tuple[int, ...]) -> None:
    """Copies for a backward that is to run again (retain_graph, create_graph). Only what fills its memory is written
    into, and a copy of that has its layout."""
    for position in donated:
        copy = inputs[position].clone()
        if copy.stride() == inputs[position].stride():
            inputs[position] = copy


def _guard_count(values: Iterable[torch.SymInt | None]) -> int:
    """Of the conditions that torch has recorded on the symbols."""
    return sum(len(value.node.shape_env.guards) for value in values if value is not None)


def _output_strides(artifact: _C.Artifact, symbols: Sequence[torch.SymInt | None]) -> list[tuple[Any, ...] | None]:
    """What AOTAutograd compiles the backward for: of each output its strides, SymInts where they change from call to
    call; None where it is no tensor, or where only the run knows them: then they are the traced ones."""
    nodes, outputs = artifact.output_strides()
    known: list[bool] = []
    for op, value, args in nodes:
        known.append(symbols[value] is not None if op == SYMBOL else all(known[arg] for arg in args))
    outputs = [strides and (None if any(isinstance(stride, tuple) and not known[stride[0]] for stride in strides)
                            else strides) for strides in outputs]
    wanted = {stride[0] for strides in outputs if strides for stride in strides if isinstance(stride, tuple)}
    values = values_of(nodes, wanted, symbols)
    return [strides and tuple(values[stride[0]] if isinstance(stride, tuple) else stride for stride in strides)
            for strides in outputs]


def _runner(artifact: _C.Artifact, constants: tuple[torch.Tensor, ...], gpu: torch.device | None) -> Boxed:
    """Holds no CompiledGraph: torch's trees of CUDA graphs live until the functions they replay are gone."""

    def with_constants(inputs: list[Any]) -> list[Any]:
        inputs.extend(constants)
        return artifact(inputs)

    run = with_constants if constants else artifact
    return run if gpu is None or torch.cuda.device_count() == 1 else _on(gpu, run)


def _on(gpu: torch.device, run: Boxed) -> Boxed:
    """A program runs on the device that is current, which need not be its tensors' own."""

    def run_there(inputs: list[Any]) -> Any:
        if torch.cuda.current_device() == gpu.index:
            return run(inputs)
        with torch.cuda.device(gpu):
            return run(inputs)

    return run_there


def _record(info: ProgramRecord) -> None:
    records.count("graphs")
    records.count("hits" if info["hit"] else "compiles")
    records.count("joined", int(info["joined"]))
    for what in info["recovered"]:
        fallback.note_recovered(what)
    for reason in info["refused"]:
        fallback.note_refused(reason)
    if info["not_kept"]:
        fallback.note_not_kept(info["not_kept"])
    records.count("kernels", len(info["launches"]))
    records.count("library_calls", len(info["library_calls"]))
    records.count("python_calls", len(info.get("python_calls", ())))
    records.count("uploaded_bytes", info["uploaded_bytes"])
    records.count("fetched_objects", info["fetched_objects"])
    records.add_seconds("connect", info["connect_seconds"])
    records.add_seconds("lookup", info["lookup_seconds"])
    records.add_seconds("compile", info["compile_seconds"])
    records.add_seconds("fetch", info["fetch_seconds"])
    if info.get("tuning", {}).get("without"):
        fallback.note_not_measured(info["tuning"]["without"])
    records.record_graph(info)
