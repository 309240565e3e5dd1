"""Library calls that the runtime makes through Python: any overload that no typed function of torch's serves."""
import functools

import torch

from . import _C
from .graph import _DEVICES, _DTYPES, _MEMORY_FORMATS

_CODES = {
    "dtype": {number: dtype for dtype, number in _DTYPES.items()},
    "memory_format": {number: value for value, number in _MEMORY_FORMATS.items()},
    "layout": {0: torch.strided},
    "device": {number: torch.device(name) for name, number in _DEVICES.items()},
}


@functools.lru_cache(None)
def overload(target):
    namespace, name, overload_name = target.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload_name)


@functools.lru_cache(None)
def _required(target):
    """Names of the parameters without a default; None is left out of graphs even there."""
    return tuple(argument.name for argument in overload(target)._schema.arguments if not argument.has_default_value())


def _tensors(values):
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)


# Programs know that the results of these lie in their arguments' memory (LoopBuffer::shares).
_VIEWS = frozenset(("aten.view.dtype", "aten.view_as_real.default", "aten.view_as_complex.default"))


def _own(result, memories):
    """`result` in memory of its own, as it is to be read: programs write over dead arguments, and know no lazy bits."""
    if not isinstance(result, torch.Tensor):
        return result
    result = result.resolve_conj().resolve_neg()
    return result.clone() if result.untyped_storage()._cdata in memories else result


def call(target, arguments):
    """Runs `target` below autograd. `(kind, number)` pairs stand for types that only Python has."""
    if target.startswith("Tensor."):  # a tensor refused to tell the runtime this, and raises here
        getattr(arguments["self"], target.removeprefix("Tensor."))()
        return None
    for name, value in arguments.items():
        if type(value) is tuple:
            arguments[name] = _CODES[value[0]][value[1]]
    for name in _required(target):
        arguments.setdefault(name, None)
    with torch._C._AutoDispatchBelowAutograd():
        result = overload(target)(**arguments)
    memories = set()
    if target not in _VIEWS:
        memories.update(tensor.untyped_storage()._cdata for tensor in _tensors(arguments.values()))
    if isinstance(result, (tuple, list)):
        return [_own(part, memories) for part in result]
    return _own(result, memories)


@functools.lru_cache(None)
def install():
    """Tells the extension how tensors cross and whom to call. Once a process."""
    _C.set_torch(torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors,
                 torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs, call)
