"""Library calls that the runtime makes through Python: any overload that no typed function of torch's serves."""
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from . import _C, python_calls
from .graph_codes import DEVICES, DTYPES, MEMORY_FORMATS

_CODES: dict[str, dict[int, Any]] = {
    "dtype": {number: dtype for dtype, number in DTYPES.items()},
    "memory_format": {number: value for value, number in MEMORY_FORMATS.items()},
    "layout": {0: torch.strided},
    "device": {number: torch.device(name) for name, number in DEVICES.items()},
}


@functools.lru_cache(None)
def overload(target: str) -> torch._ops.OpOverload:
    namespace, name, overload_name = target.split(".")
    found: torch._ops.OpOverload = getattr(getattr(getattr(torch.ops, namespace), name), overload_name)
    return found


@functools.lru_cache(None)
def _required(target: str) -> tuple[str, ...]:
    """Names of the parameters without a default; None is left out of graphs even there."""
    return tuple(argument.name for argument in overload(target)._schema.arguments if not argument.has_default_value())


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)


# Programs know that the results of these alias their arguments (LoopBuffer::shares).
_VIEWS = frozenset(("aten.view.dtype", "aten.view_as_real.default", "aten.view_as_complex.default"))


def call(target: str, arguments: dict[str, Any]) -> Any:
    """Runs `target` below autograd. `(kind, number)` pairs stand for types that only Python has."""
    if target.startswith("Tensor."):  # a tensor refused to tell the runtime this, and raises here
        getattr(arguments["self"], target.removeprefix("Tensor."))()
        return None
    if target.startswith(python_calls.PREFIX):
        return python_calls.run(target, arguments)
    for name, value in arguments.items():
        if type(value) is tuple:
            arguments[name] = _CODES[value[0]][value[1]]
    for name in _required(target):
        arguments.setdefault(name, None)
    with torch._C._AutoDispatchBelowAutograd():
        result = overload(target)(**arguments)
    memories: set[int] = set()
    if target not in _VIEWS:
        memories.update(tensor.untyped_storage()._cdata for tensor in _tensors(arguments.values()))
    if isinstance(result, (tuple, list)):
        return [python_calls.own(part, memories) for part in result]
    return python_calls.own(result, memories)


@functools.lru_cache(None)
def install() -> None:
    """Tells the extension how tensors cross and whom to call. Once a process."""
    _C.set_torch(torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors,
                 torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs, call)
