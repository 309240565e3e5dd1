"""kiln._C (client/python/extension.cc): keys, the service, compiled programs. Threads: any; calls that wait release the
GIL. A status of the service is a ServiceError, one of a run RuntimeError or IndexError."""
from collections.abc import Callable
from typing import Any, TypedDict, final

from .program_record import ProgramRecord
from .symbols import ExprNode

class ServiceError(RuntimeError):
    """args: the status code's name, and its message."""

class NoVerdict(ServiceError):
    """Of a gang's member: says nothing of what the other members are served."""

class Contradiction(RuntimeError):
    """A library call gave something else than its operator's declaration said."""

class RunCounts(TypedDict):
    calls: int
    launches: int
    library_calls: int
    stride_copies: int

@final
class Artifact:
    """A loaded program. Immutable but for its counters; its runs may overlap."""

    def __call__(self, inputs: list[Any], /) -> list[Any]:
        """Takes tensors and integers from the list, which it empties."""
    def info(self) -> ProgramRecord: ...
    def counts(self) -> RunCounts: ...
    def times(self) -> list[tuple[int, int | str, int, int, int]]:
        """(step, kernel's number or what else it is, runs, total and least nanoseconds) of the steps that ran timed."""
    def guards(self) -> tuple[list[ExprNode], list[int], list[tuple[int, int, int]]]:
        """(expressions, those that must hold, (source, input, dim) of each symbol)."""
    def output_strides(self) -> tuple[list[ExprNode], list[tuple[int | tuple[int], ...] | None]]:
        """(expressions, the strides of each output: numbers, and (expression,)); None for what is no tensor."""
    def debug_files(self) -> list[tuple[str, bytes]]: ...

def configure(names: dict[str, str], connect_seconds: float, compile_seconds: float, /) -> None: ...
def address() -> str: ...
def report_use(seconds: float, /) -> None:
    """Tells the service what it was not told yet; waits no longer than that."""

def set_torch(tensors_to_handles: Callable[..., Any], handles_to_tensors: Callable[..., Any],
              library_callback: Callable[[str, dict[str, Any]], Any], /) -> None: ...
def set_timing(on: bool, /) -> None: ...
def tuned_plans() -> int: ...
def keep_freed_memory() -> None: ...
def build(graph: bytes, facts: bytes, notes: bytes, hints: list[int], mode: int, fallback_random: bool,
          deterministic: bool, float32_matmul_precision: str, convolutions_without_tf32: bool, onednn: bool,
          torch_version: str, decomposition_digest: bytes, gpu_architecture: str, multiprocessors: int,
          /) -> tuple[bytes, bytes, bytes, list[int]]:
    """(request key, header, canonical bytes, the given symbols' numbers in the canonical order) of a request."""

def get(key: bytes, header: bytes, graph: bytes, hints: list[int], interpret: str, debug: bool, gang: bytes, ranks: int,
        background: bool = False, /) -> Artifact:
    """The program; an empty `graph` only looks it up. `gang`: see gang.py. `background`: by a thread that the process
    does not wait for; see end_background."""

def end_background() -> None:
    """The process ends: calls of `get` in the background are cancelled, and never come back."""
