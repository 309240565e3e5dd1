"""What AOTAutograd gets for a graph that runs without kiln.

Where only the service was missing (retry.py) it is asked for again in the background, and the graph's next call takes
what came: the compiled graph from then on, or, where that needs torch again, a retrace. Forward and backward change
each by itself: both ways of a graph take and give the same tensors in the same order, a compiled one takes them in any
layout, and random numbers that a backward needs are among them.
"""
from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache, FXGraphCacheMiss
from torch._inductor.output_code import OutputCode
from torch._inductor.utils import InputType

from . import records, stale
from .fallback import Boxed
from .retry import Outcome, Retry


@dataclasses.dataclass(eq=False)
class FallbackGraph(OutputCode):
    """A graph that runs operator by operator, for now or for good. Never cached: an outage would last for ever.

    Threads: its runs may overlap. A run that has begun ends as it began."""

    run: Boxed
    retry: Retry | None = None  # None: nobody asks again

    def __post_init__(self) -> None:
        self._fx_graph_cache_key = "kiln-fallback"
        self._time_taken_ns = 0
        # On the instance: torch's wrappers copy its dictionary.
        self._boxed_call = True

    def __call__(self, inputs: list[Any]) -> Any:  # type: ignore[override]  # as in compiled.py
        if (retry := self.retry) is not None:
            self._take(retry)
        return self.run(inputs)

    def _take(self, retry: Retry) -> None:
        """What came of it, if anything did. Nothing changes in what is being recorded as a CUDA graph: a first run
        does what cannot be."""
        outcome = retry.now()
        compiled = retry.compiled
        if outcome is Outcome.NONE_YET or (compiled.gpu is not None and torch.cuda.is_current_stream_capturing()):
            return
        if outcome is Outcome.LOADED:
            self.run = compiled
        elif outcome is Outcome.TRACE_ANEW:
            if not stale.may_retrace():
                return
            stale.retrace(compiled.compile_id, "kiln: the compile service is there again")
        self.retry = None
        if outcome is not Outcome.STAYS:
            records.count("retried")

    # ---- torch's cache

    def why_not_kept(self) -> str:
        return "a graph runs without kiln"

    def prepare_for_serialization(self) -> NoReturn:
        raise BypassAOTAutogradCache(self.why_not_kept())

    def post_compile(self, example_inputs: Sequence[InputType], constants: Any, graph_kwargs: Any) -> NoReturn:
        raise FXGraphCacheMiss("a graph ran without kiln")

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        pass
