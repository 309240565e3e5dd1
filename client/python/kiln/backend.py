"""The backend function of torch.compile, and the compilers that AOTAutograd calls for each graph."""
import collections
import dataclasses
import functools
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import sympy
import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TorchDynamoException, exceptions_allowed_to_be_fallback
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler

from . import (
    _C,
    attention_masks,
    autograd_cache,
    cuda_graphs,
    debug,
    decompositions,
    devices,
    environment,
    fallback,
    gang,
    guards,
    library,
    options as options_module,
    python_calls,
    records,
    remade_views,
    retry,
    titles,
)
from .compiled import CompiledGraph, Use, symbols_by_name
from .errors import GangDiverges, Unsupported
from .exported_graph import ExportedGraph
from .fallback_graph import FallbackGraph
from .graph import BACKWARD, FORWARD, INFERENCE, export
from .options import Options
from .partition import Part, partition
from .partitioned_graph import PartitionedGraph, Places
from .refinement import is_refusal, refined

Compiled: TypeAlias = CompiledGraph | PartitionedGraph

# What Dynamo handles itself, by retracing, by a graph break or (IndexError) as the program's own error, and what the
# caller has asked for.
_RAISED = (TorchDynamoException, *exceptions_allowed_to_be_fallback, IndexError, Unsupported, GangDiverges)

_KIND_NAMES = {FORWARD: "forward", BACKWARD: "backward", INFERENCE: "inference"}


def _torch_version() -> str:
    return ".".join(torch.__version__.split(".")[:2])


def _metadata() -> Any:
    """AOTAutograd's, of the graph that is being compiled; None where it is not the caller."""
    context = torch._guards.TracingContext.try_get()
    return context.fw_metadata if context is not None else None


def _static_inputs(kind: int) -> tuple[int, ...]:
    metadata = _metadata()
    if kind == BACKWARD or metadata is None:
        return ()
    return tuple(metadata.static_input_indices or ())


def _donated_inputs(module: fx.GraphModule, kind: int) -> tuple[int, ...]:
    """Positions of what a backward may write into. They are taken from torch, which refuses to run such a backward
    twice; CompiledGraph copies them then."""
    metadata = _metadata()
    if kind != BACKWARD or metadata is None or not metadata.bw_donated_idxs:
        return ()
    donated = tuple(metadata.bw_donated_idxs)
    metadata.bw_donated_idxs.clear()  # a list that torch has in several places
    return _alone(module, donated)


def _alone(module: fx.GraphModule, donated: tuple[int, ...]) -> tuple[int, ...]:
    """Those whose memory no other input has. torch looks at inputs, results and gradients only: of a value and its
    detached one, saved both, it donates both."""
    memories = [python_calls.memory_of(node.meta.get("val")) for node in module.graph.find_nodes(op="placeholder")]
    holders = collections.Counter(memory for of_input in memories for memory in of_input)
    return tuple(position for position in donated if all(holders[memory] == 1 for memory in memories[position]))


def _visible_outputs(module: fx.GraphModule, kind: int) -> range | None:
    return decompositions.results_of_forward(module) if kind == FORWARD else None


def _take_layouts(module: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """What the forward saved may have another layout than was traced; AOTAutograd passes it in the one that the
    forward's program told."""
    placeholders = (node for node in module.graph.nodes if node.op == "placeholder")
    for node, value in zip(placeholders, inputs):
        if isinstance(value, torch.Tensor) and isinstance(node.meta.get("val"), torch.Tensor):
            node.meta["val"] = value


def _guards(inputs: Iterable[Any]) -> list[sympy.Basic]:
    """Conditions that torch has recorded on the symbols so far."""
    for value in inputs:
        sizes = [value] if isinstance(value, torch.SymInt) else getattr(value, "shape", ())
        for size in sizes:
            if isinstance(size, torch.SymInt):
                return [guard.expr for guard in size.node.shape_env.guards]
    return []


def compile_graph(module: fx.GraphModule, inputs: Sequence[Any], kind: int, settings: Options,
                  pair: cuda_graphs.Pair | None = None, region: str | None = None) -> Compiled | FallbackGraph:
    """The compiled graph, or one that runs without kiln; both are OutputCode, as torch's cache wants it.

    pair: of the graph and its backward, where CUDA graphs are wanted.
    region: its title, where it is a sub-graph that a call of Python runs."""
    title = region or _KIND_NAMES[kind]
    asked: list[retry.Asked] = []
    try:
        title = region or f"{titles.compiled_name()} {_KIND_NAMES[kind]}"
        return _compile(module, inputs, kind, settings, pair, title, region is not None, asked)
    except Exception as error:  # whatever it is, torch can run the graph
        gang.check_verdict(title, error)
        reason, message = fallback.reason_of_error(error)
        run, record = fallback.run_without_kiln(module, title, reason, message, error)
        again = retry.wanted(error, asked[-1] if asked else None, record)
    if pair is not None and devices.any_on_gpu(module):
        run = cuda_graphs.wrap_fallback(run, kind, pair, reason)
    return FallbackGraph(run, again)


@dataclasses.dataclass(frozen=True)
class _Task:
    """What one graph is compiled for, or a part of it."""

    kind: int
    settings: Options
    title: str
    gpu: torch.device | None  # None: the CPU
    guards: list[sympy.Basic]  # conditions on the symbols
    symbols: dict[str, torch.SymInt]  # as from symbols_by_name
    static_inputs: tuple[int, ...] = ()
    donated_inputs: tuple[int, ...] = ()
    visible_outputs: range | None = None  # positions; None: all
    inner: bool = False  # torch knows nothing of its outputs
    asked: list[retry.Asked] = dataclasses.field(default_factory=list)  # what the service was asked for, in order


def _compile(module: fx.GraphModule, inputs: Sequence[Any], kind: int, settings: Options, pair: cuda_graphs.Pair | None,
             title: str, region: bool, asked: list[retry.Asked]) -> Compiled:
    start = time.perf_counter()
    donated = _donated_inputs(module, kind)
    environment.configure()
    library.install()
    gpu = devices.gpu_of(module)
    recording = cuda_graphs.describe(module, inputs, kind, gpu, _static_inputs(kind), pair)
    # The trees free what a backward has used; a result in its place would look like a tensor of the forward's.
    if recording is not None:
        donated = ()
    if kind == BACKWARD:
        _take_layouts(module, inputs)
    elif not region and (metadata := _metadata()) is not None:
        remade_views.mark(module, metadata)
    task = _Task(kind, settings, title, gpu, _guards(inputs), symbols_by_name(inputs),
                 () if region else _static_inputs(kind), donated, _visible_outputs(module, kind), region,
                 asked)
    compiled, use = _compiled(module, task, recording)
    use()
    compiled._time_taken_ns = int((time.perf_counter() - start) * 1e9)
    return compiled


def _compiled(module: fx.GraphModule, task: _Task, recording: cuda_graphs.Recording | None) -> tuple[Compiled, Use]:
    """(the compiled graph, a function to be called where it is to be used)"""
    began = time.perf_counter()

    def exporting(refused: dict[fx.Node, str]) -> ExportedGraph:
        nonlocal began
        began = time.perf_counter()
        return export(module, task.kind, title=task.title, static_inputs=task.static_inputs,
                      donated_inputs=task.donated_inputs, visible_outputs=task.visible_outputs, guards=task.guards,
                      guards_text=guards.texts(), gpu=task.gpu, refused=refused)

    def compiling(exported: ExportedGraph) -> tuple[Compiled, Use]:
        recorded = recording
        if (cuda_graphs.may_record(recording) and not recording.partial
                and (unrecordable := {**cuda_graphs.unrecordable(module), **exported.refused})):
            if (parts := _in_parts(module, task, recording, unrecordable)) is not None:
                return parts
            recorded = cuda_graphs.skipped(recording, _reasons(unrecordable))
        compiled, graph = _request(module, task, recorded, exported)
        records.add_seconds("export", time.perf_counter() - began)
        _compile_regions(exported.python, task)
        task.asked.append(retry.Asked(compiled, graph, task.symbols))
        return compiled, compiled.load(graph, task.symbols)

    return refined(exporting, compiling)


def _reasons(unrecordable: Mapping[fx.Node, str]) -> str:
    return "; ".join(dict.fromkeys(unrecordable.values()))


def _in_parts(module: fx.GraphModule, task: _Task, recording: cuda_graphs.Recording,
              unrecordable: Mapping[fx.Node, str]) -> tuple[PartitionedGraph, Use] | None:
    """As _compiled, of a graph that is recorded but for some nodes; None where that does not do."""
    try:
        found = partition(module, unrecordable, recording.static_inputs)
        if not any(part.recorded for part in found.parts):
            return None
        graphs, uses = zip(*(_compiled_part(part, number, len(found.parts), task, recording)
                             for number, part in enumerate(found.parts, 1)))
    except (Unsupported, _C.ServiceError) as error:
        if isinstance(error, _C.ServiceError) and not is_refusal(error):
            raise
        return None

    def use() -> None:
        for use_part in uses:
            use_part()
        # All outputs have the traced layout.
        context = torch._guards.TracingContext.try_get()
        if context is not None and context.output_strides is not None and not context.output_strides:
            context.output_strides.extend([None] * len(found.outputs))

    places = [Places(part.reads, part.frees, part.gives) for part in found.parts]
    return PartitionedGraph(list(graphs), places, found.slot_count, found.outputs), use


def _compiled_part(part: Part, number: int, count: int, task: _Task,
                   recording: cuda_graphs.Recording) -> tuple[Compiled, Use]:
    inputs = [node.meta["val"] for node in part.module.graph.find_nodes(op="placeholder")]
    recording = cuda_graphs.of_part(recording, part)
    title = f"{task.title}, part {number} of {count}"
    return _compiled(part.module, dataclasses.replace(
        task, title=title, symbols={**task.symbols, **symbols_by_name(inputs)}, static_inputs=recording.static_inputs,
        visible_outputs=None, inner=True), recording)


def _compile_regions(part: python_calls.PythonPart | None, task: _Task) -> None:
    """Compiles the sub-graphs of a graph's calls of Python by themselves, each once."""
    known: dict[fx.GraphModule, python_calls.Region] = {}
    for call in part.calls if part is not None else ():
        for name, module in python_calls.sub_graphs(call.module) if not call.by_inductor else ():
            if module not in known:
                inputs = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
                known[module] = compile_graph(module, inputs, INFERENCE, task.settings, None, f"{name} of {task.title}")
            call.regions += (known[module],)


def _request(module: fx.GraphModule, task: _Task, recording: cuda_graphs.Recording | None,
             exported: ExportedGraph) -> tuple[CompiledGraph, bytes]:
    """(the graph to be loaded, its canonical bytes)"""
    gpu = task.gpu
    key, header, graph, symbols = _C.build(
        exported.graph, exported.facts, exported.notes, list(exported.hints), options_module.MODES[task.settings.mode],
        task.settings.fallback_random, torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(), devices.convolves_without_tf32(gpu), devices.has_onednn(gpu),
        _torch_version(), decompositions.digest(), devices.architecture(gpu), devices.multiprocessors(gpu))
    names = tuple(str(exported.symbols[symbol]) for symbol in symbols)
    unbacked_hints = tuple(exported.hints[symbol] if exported.symbols[symbol] in exported.unbacked else None
                           for symbol in symbols)
    from_cpu = [position for position in devices.inputs_from_cpu(module, gpu, exported.float_inputs)
                if exported.python is None or not exported.python.holds(position)]
    return CompiledGraph(key, header, names, unbacked_hints, tuple(exported.constants), task.title,
                         tuple(exported.other_outputs), tuple(exported.truths), tuple(exported.float_inputs),
                         autograd_cache.may_keep(), gpu, tuple(from_cpu), tuple(exported.to_cpu),
                         tuple(exported.more_sizes), exported.python, recording,
                         for_inference=task.kind == INFERENCE, inner=task.inner, donated=task.donated_inputs), graph


def kiln(gm: fx.GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None,
         options: Mapping[str, object] | None = None) -> Callable[..., Any]:
    """Backend function: torch.compile(model, backend="kiln", mode=…, options=…).

    Gives what runs the graph: a function of its inputs that gives its outputs, both as traced. Raises ValueError or
    TypeError for a mode, an option or an environment variable that is not valid, Unsupported for a graph that is
    not compiled under KILN_FALLBACK=error, and GangDiverges under KILN_GANG=strict."""
    settings = options_module.parse(mode, options)
    # What the caller has set wrongly is the caller's error.
    fallback.policy()
    retry.first_pause()
    gang.check()
    environment.interpret_list()
    environment.configure()
    debug.check()
    with fallback.left_out("the search for masks that hide nothing"):
        attention_masks.drop(gm)

    with cuda_graphs.paired() as pair:
        wanted = pair if settings.mode in cuda_graphs.MODES else None

        def compiler(kind: int) -> SerializableAOTDispatchCompiler:
            return autograd_cache.serializable(
                lambda module, inputs: compile_graph(module, inputs, kind, settings, wanted))

        backend = aot_autograd(fw_compiler=compiler(FORWARD), bw_compiler=compiler(BACKWARD),
                               inference_compiler=compiler(INFERENCE), decompositions=decompositions.table(),
                               partition_fn=decompositions.partition, keep_inference_input_mutations=True)
        try:
            with autograd_cache.joined(_cache_tag(settings)), decompositions.kept_whole():
                return backend(gm, example_inputs)
        except _RAISED:
            raise
        except Exception as error:  # compile_graph raises none of these: AOTAutograd does, or what it calls of kiln's
            return fallback.run_as_captured(gm, titles.compiled_name(), error)


kiln.reset = cuda_graphs.reset  # type: ignore[attr-defined]  # torch._dynamo.reset() calls it


def _cache_tag(settings: Options) -> str:
    """What torch's cache key has to tell apart for kiln. It has neither back-end nor options nor oneDNN's switch."""
    parts = (repr(settings), decompositions.digest().hex(), _package_digest(), str(devices.has_onednn(None)))
    return "kiln-" + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


@functools.cache
def _package_digest() -> str:
    """Of this package's code, Python's and the extension's. Not of its times: an image of a file system may give all
    files the same one."""
    digest = hashlib.sha256()
    folder = os.path.dirname(__file__)
    for path in (*sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".py")),
                 _C.__file__):
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def register() -> None:
    """Makes the name known also where the package is not installed but only on the path."""
    from importlib.metadata import EntryPoint

    from torch._dynamo.backends import registry

    if "kiln" not in registry._COMPILER_FNS:
        registry._BACKENDS.setdefault(
            "kiln", EntryPoint(name="kiln", value="kiln.backend:kiln", group="torch_dynamo_backends"))
