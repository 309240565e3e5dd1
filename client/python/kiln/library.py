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


def call(target, arguments):
    """Runs `target` below autograd. `(kind, number)` pairs stand for types that only Python has."""
    for name, value in arguments.items():
        if type(value) is tuple:
            arguments[name] = _CODES[value[0]][value[1]]
    with torch._C._AutoDispatchBelowAutograd():
        return overload(target)(**arguments)


@functools.lru_cache(None)
def install():
    """Tells the extension how tensors cross and whom to call. Once a process."""
    _C.set_torch(torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors,
                 torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs, call)
