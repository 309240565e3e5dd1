"""Operators and modules of torch's own test databases (`op_db`, `module_db`), their inputs, and inputs that must raise.

A subject is named as the database names it, modules as "nn.Linear". Which of its samples are drawn is decided by the
seed, the subject and the dtype alone.
"""
from __future__ import annotations

import copy
import dataclasses
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool,
    torch.complex64)}
ERRORS = "errors"  # stands where a dtype does: the subject's error inputs

_WIDER = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64,
          torch.complex64: torch.complex128, torch.complex32: torch.complex128}
_NARROWER = {torch.float64: torch.float32, torch.complex128: torch.complex64}


@dataclasses.dataclass
class Case:
    """One call. `function`: a function, or the sample's own module."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    process: Callable[..., Any] = lambda result: result  # takes what gradients are defined of
    differentiable: bool = False

    def copied(self, change: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
               dtypes: dict[torch.dtype, torch.dtype] | None = None) -> Case:
        """With tensors of its own that lie as these do and share memory as these do; `change`d, if asked for."""
        memory: dict[int, Any] = {}

        def own(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                strided = value.layout == torch.strided
                copied = change(copy.deepcopy(value.detach(), memory) if strided else value.detach().clone())
                return copied.detach().requires_grad_(value.requires_grad)
            return dtypes.get(value, value) if dtypes and isinstance(value, torch.dtype) else value

        function = copy.deepcopy(self.function) if isinstance(self.function, torch.nn.Module) else self.function
        return dataclasses.replace(self, function=function, args=tree_map(own, self.args),
                                   kwargs=tree_map(own, self.kwargs))

    def wider(self) -> Case:
        """The same in fp64."""
        return self._as(_WIDER)

    def nearby(self, seed: int, by: float = 0.5) -> Case:
        """The same with other numbers, by so much of each at most."""
        generator = torch.Generator().manual_seed(seed)

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            if (not tensor.is_floating_point() and not tensor.is_complex()) or tensor.layout != torch.strided:
                return tensor
            factors = 1 + 2 * by * (torch.rand(tensor.shape, generator=generator, dtype=torch.float64) - 0.5)
            return torch.empty_like(tensor).copy_(tensor * factors.to(tensor.device))

        return self.copied(moved)

    def narrower(self) -> Case:
        """The same in float32, of fp64."""
        return self._as(_NARROWER)

    def _as(self, dtypes: dict[torch.dtype, torch.dtype]) -> Case:
        case = self.copied(lambda tensor: tensor.to(dtypes.get(tensor.dtype, tensor.dtype)), dtypes)
        if isinstance(case.function, torch.nn.Module):
            for tensor in [*case.function.parameters(), *case.function.buffers()]:
                tensor.data = tensor.data.to(dtypes.get(tensor.dtype, tensor.dtype))
        return case

    def tensors(self) -> list[torch.Tensor]:
        return [value for value in tree_leaves((self.args, self.kwargs)) if isinstance(value, torch.Tensor)]

    def dtypes(self) -> set[torch.dtype]:
        """Of its tensors, and those it names."""
        return {value.dtype if isinstance(value, torch.Tensor) else value
                for value in tree_leaves((self.args, self.kwargs)) if isinstance(value, (torch.Tensor, torch.dtype))}

    def leaves(self) -> list[torch.Tensor]:
        """Whose gradients are asked for."""
        own = list(self.function.parameters()) if isinstance(self.function, torch.nn.Module) else []
        return [tensor for tensor in own + self.tensors() if tensor.requires_grad] if self.differentiable else []

    def __str__(self) -> str:
        def shown(value: Any) -> str:
            if isinstance(value, torch.Tensor):
                dtype = str(value.dtype).removeprefix("torch.")
                plain = value.layout != torch.strided or value.is_contiguous()
                return f"{dtype}{list(value.shape)}" + ("" if plain else f" by {list(value.stride())}")
            if isinstance(value, (list, tuple)):
                return "[" + ", ".join(map(shown, value)) + "]"
            return repr(value)

        words = [shown(value) for value in self.args] + [f"{key}={shown(value)}" for key, value in self.kwargs.items()]
        return ", ".join(words)


class Subject:
    """An entry of op_db or module_db."""

    def __init__(self, name: str, info: Any, device: str = "cpu") -> None:
        self.name = name
        self.info = info
        self.device = device
        self.is_module = hasattr(info, "module_cls")

    def dtypes(self) -> list[str]:
        """Names of what it can be asked for, `errors` among them."""
        supported = self.info.supported_dtypes(self.device)
        names = [name for name, dtype in DTYPES.items() if dtype in supported]
        has_errors = self.info.module_error_inputs_func if self.is_module else self.info.error_inputs_func
        return names + ([ERRORS] if has_errors and supported else [])

    def cases(self, dtype_name: str, count: int, seed: int) -> list[tuple[int, Case]]:
        """At most `count` (number in the database's order, Case), drawn by the seed; all error inputs.

        Each is copied by who runs it. The generators of torch, Python and numpy are seeded."""
        draw = random.Random(f"{seed} {self.name} {dtype_name}")
        _seed_all(draw.randrange(2**31))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if dtype_name == ERRORS:
                return list(enumerate(self._error_cases()))
            made = list(enumerate(self._cases(DTYPES[dtype_name])))
        return sorted(draw.sample(made, min(count, len(made))), key=lambda numbered: numbered[0])

    def _differentiable(self, dtype: torch.dtype) -> bool:
        if self.is_module:
            return True
        return self.info.supports_autograd and dtype in self.info.supported_backward_dtypes(self.device)

    def _cases(self, dtype: torch.dtype) -> Iterator[Case]:
        grad = self._differentiable(dtype)
        if not self.is_module:
            for sample in self.info.sample_inputs(self.device, dtype, requires_grad=grad):
                yield self._of_sample(sample, grad)
            return
        for training in (True, False):
            for given in self.info.module_inputs_func(self.info, device=self.device, dtype=dtype, requires_grad=grad,
                                                      training=training):
                yield self._of_module(given, dtype, training)

    def _error_cases(self) -> Iterator[Case]:
        if self.is_module:
            for given in self.info.module_error_inputs_func(self.info, device=self.device, dtype=torch.float32,
                                                            requires_grad=False, training=False):
                if given.error_on.name == "FORWARD_ERROR":
                    yield self._of_module(given.module_error_input, torch.float32, False, grad=False)
            return
        for given in self.info.error_inputs(self.device):
            yield self._of_sample(given.sample_input, False)

    def _of_sample(self, sample: Any, grad: bool) -> Case:
        return Case(self.info.op, (sample.input, *sample.args), dict(sample.kwargs), sample.output_process_fn_grad,
                    grad)

    def _of_module(self, given: Any, dtype: torch.dtype, training: bool, grad: bool = True) -> Case:
        constructor, forward = given.constructor_input, given.forward_input
        module = self.info.module_cls(*constructor.args, **constructor.kwargs).to(self.device, dtype).train(training)
        return Case(module, tuple(forward.args), dict(forward.kwargs), differentiable=grad)


def subjects(device: str = "cpu") -> dict[str, Subject]:
    """{name: Subject} of both databases, in their order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_methods_invocations
        from torch.testing._internal.common_modules import module_db

    # Operators that draw are wrapped in one that seeds first, at which Dynamo would break the graph.
    common_methods_invocations.wrapper_set_seed = (  # type: ignore[attr-defined]  # imported there, looked up by name
        lambda function, *args, **kwargs: function(*args, **kwargs))
    found: dict[str, Any] = {info.full_name: info for info in common_methods_invocations.op_db}
    found.update({_module_name(info): info for info in module_db})
    return {name: Subject(name, info, device) for name, info in found.items()}


def _module_name(info: Any) -> str:
    return info.name.replace("nn.modules.", "nn.") if info.name.startswith("nn.") else f"nn.{info.name}"


def _seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
