"""A graph that runs in parts (partition.py), each a CompiledGraph: torch's trees of CUDA graphs record some of them."""
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache, FXGraphCacheMiss
from torch._inductor.output_code import OutputCode
from torch._inductor.utils import InputType

from . import records
from .compiled import CompiledGraph, symbols_by_name
from .partition import Slot


class Places(NamedTuple):
    """Slots of one part."""

    reads: tuple[int, ...]
    frees: tuple[int, ...]  # behind its last read
    gives: tuple[int, ...]  # of its results


@dataclasses.dataclass(eq=False)
class PartitionedGraph(OutputCode):
    """Takes its inputs in a list, which it empties. Immutable when made; its runs may overlap."""

    graphs: list[CompiledGraph]  # one a part
    places: list[Places]  # one a part
    slot_count: int
    outputs: tuple[Any, ...]  # Slot, or a constant

    __hash__ = object.__hash__  # the base class compares by value
    __eq__ = object.__eq__

    def __post_init__(self) -> None:
        self._fx_graph_cache_key = "-".join(graph.request_key.hex() for graph in self.graphs)
        self._time_taken_ns = 0
        # On the instance: torch's wrappers copy its dictionary.
        self._boxed_call = True

    def __call__(self, inputs: list[Any]) -> list[Any]:  # type: ignore[override]  # as in compiled.py
        slots = inputs + [None] * (self.slot_count - len(inputs))
        inputs.clear()
        for graph, (reads, frees, gives) in zip(self.graphs, self.places):
            arguments = [slots[slot] for slot in reads]
            for slot in frees:
                slots[slot] = None
            for slot, result in zip(gives, graph(arguments)):
                slots[slot] = result
        return [slots[output.number] if isinstance(output, Slot) else output for output in self.outputs]

    # ---- torch's cache

    def why_not_kept(self) -> str | None:
        """Why torch's cache can't have the graph; None where it can."""
        return next(filter(None, (graph.why_not_kept() for graph in self.graphs)), None)

    def prepare_for_serialization(self) -> None:
        if reason := self.why_not_kept():
            records.count("autograd_cache_bypasses")
            raise BypassAOTAutogradCache(reason)

    def post_compile(self, example_inputs: Sequence[InputType], constants: Any, graph_kwargs: Any) -> None:
        try:
            symbols = symbols_by_name(example_inputs)
        except Exception as error:  # whatever it is, torch retraces
            raise FXGraphCacheMiss(str(error)) from error
        for graph in self.graphs:
            graph.load_again(symbols)

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        pass
