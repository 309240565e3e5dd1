"""CUDA graphs of compiled graphs, through torch's own trees of them (torch._inductor.cudagraph_trees).

Modes reduce-overhead and max-autotune ask for them. The trees record a graph at its second call, once for each
tuple of its integers, replay it afterwards, and share one pool of memory between all graphs; what they cannot
record they run without, and torch's log `cudagraphs` says why. Here is only what they have to be told.
"""
import contextlib
import dataclasses
import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, TypeGuard

import torch
from torch import fx
from torch._inductor.cudagraph_utils import PlaceholderInfo

from . import records
from .fallback import Boxed, as_boxed
from .graph import BACKWARD, FORWARD, INFERENCE
from .partition import Part
from .program_record import ProgramRecord

MODES = ("reduce-overhead", "max-autotune")

_WITH_SYMBOLS = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
_TREES = "torch._inductor.cudagraph_trees"
_state = threading.local()


@dataclasses.dataclass(frozen=True)
class Recording:
    """What torch's trees are told of one graph; goes with it into torch's cache."""

    skip: str  # why the graph is never recorded, in torch's words; "" if it may be
    kind: int
    device_index: int
    static_inputs: tuple[int, ...]  # positions of the inputs whose address stays: parameters and buffers
    mutated_inputs: tuple[int, ...]
    placeholders: tuple[PlaceholderInfo, ...]  # with the stack traces for torch's messages
    stack_traces: tuple[str | None, ...]  # of the outputs
    partial: bool = False  # of a part of a graph (partition.py): what skips it leaves the others recorded


class Pair:
    """The graphs that come of one graph of Dynamo's. A backward is recorded only if its forward may be."""

    def __init__(self) -> None:
        self.possible = True
        self.forward_device: int | None = None
        self.static_names: frozenset[str] = frozenset()  # of the forward's static inputs; the backward may get them too


@contextlib.contextmanager
def paired() -> Iterator[Pair]:
    """In force while one graph of Dynamo's is compiled or loaded, with its backward."""
    outer = getattr(_state, "pair", None)
    _state.pair = pair = Pair()
    try:
        yield pair
    finally:
        _state.pair = outer


def describe(module: fx.GraphModule, inputs: Sequence[Any], kind: int, gpu: torch.device | None,
             static_inputs: Sequence[int], pair: Pair | None) -> Recording | None:
    """The Recording of a graph on `gpu`; None on the CPU, or where no CUDA graphs are wanted.

    static_inputs: as torch tells them of forward and inference graphs."""
    if pair is None or gpu is None:
        return None
    placeholders = module.graph.find_nodes(op="placeholder")
    if kind == BACKWARD:
        # What the forward computed is found by the trees themselves; elsewhere only parameters keep their place.
        static_inputs = [i for i, node in enumerate(placeholders) if node.name in pair.static_names]
    else:
        pair.static_names = frozenset(placeholders[i].name for i in static_inputs if i < len(placeholders))
    return _recording(_reason_to_skip(module, inputs, static_inputs), kind, gpu.index or 0, static_inputs, module)


def of_part(recording: Recording, part: Part) -> Recording:
    """The Recording of one part of the graph that `recording` describes."""
    static = set(recording.static_inputs)
    positions = [position for position, slot in enumerate(part.reads) if slot in static]
    found = _recording(part.reasons, recording.kind, recording.device_index, positions, part.module)
    return dataclasses.replace(found, partial=True)


def _recording(skip: str, kind: int, device_index: int, static_inputs: Sequence[int],
               module: fx.GraphModule) -> Recording:
    from torch._dynamo.backends import cudagraphs as traces
    from torch._inductor.cudagraph_utils import get_placeholder_info

    return Recording(skip, kind, device_index, tuple(static_inputs), _mutated_inputs(module),
                     tuple(get_placeholder_info(module.graph)), tuple(traces.get_stack_traces(module)))


def _mutated_inputs(module: fx.GraphModule) -> tuple[int, ...]:
    from torch._dynamo.backends import cudagraphs as traces

    return tuple(sorted(traces.find_input_mutations(module.graph)))


def unrecordable(module: fx.GraphModule) -> dict[fx.Node, str]:
    """{node: reason} of what torch records in no CUDA graph, and of what has sizes that only the run knows."""
    from torch._inductor import utils
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    found = {}
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        values = torch.utils._pytree.tree_leaves([other.meta.get("val") for other in (node, *node.all_input_nodes)])
        if any(isinstance(value, _WITH_SYMBOLS) and free_unbacked_symbols(value) for value in values):
            found[node] = "sizes that only the run knows"
        elif utils.is_cudagraph_unsafe_fx_node(node):
            found[node] = f"{node.target}"
    return found


def _reason_to_skip(module: fx.GraphModule, inputs: Sequence[Any], static_inputs: Sequence[int]) -> str:
    """As torch._inductor decides it at compile time; what is known only at a call, the trees decide."""
    from torch._inductor import config, cudagraph_utils
    from torch._inductor.utils import any_is_symbolic

    if config.triton.cudagraph_skip_dynamic_graphs and any_is_symbolic(*inputs):
        return "graph with symbolic shapes inputs and config.triton.cudagraph_skip_dynamic_graphs=True"
    check_allocator = getattr(cudagraph_utils, "check_caching_allocator_for_cudagraphs", None)  # torch 2.13 and later
    if check_allocator is not None and (message := check_allocator()):
        return _reason_in(message)
    moved = [i for i in _mutated_inputs(module) if i not in static_inputs]
    if moved and not config.triton.cudagraph_support_input_mutation:
        placeholders = cudagraph_utils.get_placeholder_info(module.graph)
        return _reason_in(cudagraph_utils.get_mutation_stack_trace(placeholders, moved))
    return ""


def may_record(recording: Recording | None) -> TypeGuard[Recording]:
    """Whether the graph is to be recorded, as far as is known when it is compiled."""
    if recording is None or recording.skip:
        return False
    pair = getattr(_state, "pair", None)
    return recording.kind != BACKWARD or pair is None or pair.possible


def skipped(recording: Recording, reason: str) -> Recording:
    """The recording of a graph that is not to be recorded, for `reason` unless it has one."""
    return dataclasses.replace(recording, skip=recording.skip or reason)


def _reason_in(message: str) -> str:
    """Of torch's "skipping cudagraphs due to …"."""
    from torch._inductor.cudagraph_utils import format_default_skip_message

    return message.removeprefix(format_default_skip_message(""))


def wrap(run: Boxed, recording: Recording, constants: Sequence[torch.Tensor], record: ProgramRecord) -> Boxed:
    """`run` (boxed) as torch's trees call it. `record` is the graph's record for kiln.explain."""
    pair = getattr(_state, "pair", None) or Pair()
    if recording.kind == BACKWARD and not pair.possible:
        record["cuda_graph"] = "skipped: its forward has none"
        return run
    if recording.skip:
        if not recording.partial:
            pair.possible = False
            _log_skip(recording.skip)
        record["cuda_graph"] = f"skipped: {recording.skip}"
        return _unrecorded(run, recording.kind, pair)
    if recording.kind == FORWARD:
        pair.forward_device = recording.device_index
    from torch._inductor.compile_fx import cudagraphify

    records.count("cuda_graphs")
    record["cuda_graph"] = "recorded"
    return _FirstCall(
        cudagraphify(run, recording.static_inputs, device_index=recording.device_index,
                     stack_traces=list(recording.stack_traces), is_backward=recording.kind == BACKWARD,
                     is_inference=recording.kind == INFERENCE, constants=tuple(constants),
                     placeholders=recording.placeholders, mutated_input_idxs=recording.mutated_inputs), record)


def wrap_fallback(run: Boxed, kind: int, pair: Pair, reason: str) -> Boxed:
    """`run` for a graph on a GPU that kiln did not compile."""
    if kind != BACKWARD:
        pair.possible = False
    elif not pair.possible:
        return run
    _log_skip(f"a graph that runs without kiln ({reason})")
    return _unrecorded(run, kind, pair)


def _unrecorded(run: Boxed, kind: int, pair: Pair) -> Boxed:
    device = pair.forward_device
    if kind != BACKWARD or device is None:
        return run

    # The trees wait for the backward of a forward that they replayed.
    def running_backward(inputs: list[Any]) -> Any:
        from torch._inductor import cudagraph_trees

        manager = cudagraph_trees.get_manager(device, create_if_none_exists=False)
        if manager is not None:
            manager.set_to_running_backward()
        return run(inputs)

    return as_boxed(running_backward)


def _log_skip(reason: str) -> None:
    from torch._inductor.cudagraph_utils import format_default_skip_message, log_cudagraph_skip_and_bump_counter

    log_cudagraph_skip_and_bump_counter(format_default_skip_message(reason))


class _FirstCall:
    """Notes in the graph's record what the trees say at the first call; afterwards only passes calls on."""

    def __init__(self, run: Boxed, record: ProgramRecord) -> None:
        self.run = run
        self.record: ProgramRecord | None = record
        self._boxed_call = True

    def __call__(self, inputs: list[Any]) -> Any:
        if self.record is None:
            return self.run(inputs)
        record, self.record = self.record, None
        with _torch_says() as said:
            result = self.run(inputs)
        if said:
            record["cuda_graph"] = f"skipped: {_reason_in(said[0])}"
        return result


@contextlib.contextmanager
def _torch_says() -> Iterator[list[str]]:
    """The warnings that this thread makes torch log about CUDA graphs."""
    from torch._inductor.cudagraph_utils import cudagraphs_log

    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, entry: logging.LogRecord) -> None:
            if entry.thread == threading.get_ident() and entry.levelno >= logging.WARNING:
                said.append(entry.getMessage())

    listener = Listener()
    cudagraphs_log.addHandler(listener)
    try:
        yield said
    finally:
        cudagraphs_log.removeHandler(listener)


def reset() -> None:
    """torch._dynamo.reset() forgets the recorded graphs too."""
    if _TREES in sys.modules:
        sys.modules[_TREES].reset_cudagraph_trees()
