"""Joining AOTAutograd's cache, so that a new process traces no joint graph that an earlier one has traced.

torch keeps the entry in its own local cache; the compilers' results in it are kiln's OutputCode objects, which
hold a key and are loaded from the service. What torch's key does not cover is added through `cache_key_tag`.
"""
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
from torch._inductor.output_code import OutputCode
from torch.utils._sympy.symbol import SymT, symbol_is_type

from .compiled import CompiledGraph

# Of a graph and its inputs; CompiledGraph, or FallbackGraph.
Compiler: TypeAlias = Callable[[fx.GraphModule, Sequence[Any]], OutputCode]


def serializable(compile_function: Compiler) -> SerializableAOTDispatchCompiler:
    return SerializableAOTDispatchCompiler(
        CompiledGraph, compile_function)  # type: ignore[arg-type]  # a FallbackGraph refuses to be kept


@contextlib.contextmanager
def joined(tag: str) -> Iterator[None]:
    """In force while one graph of Dynamo's goes through AOTAutograd.

    The backward is compiled within it as well: overrides of torch's configuration are per thread, and the autograd
    engine may compile a late backward on another one. Tokens of effects are made and dropped within the graph: what
    torch keeps knows of none among inputs and outputs.
    """
    outer = torch.compiler.config.cache_key_tag
    config: Any = torch.compiler.config  # torch gives the module a `patch` when it is imported
    with (config.patch(cache_key_tag=f"{outer}{tag}"),
          functorch_config.patch(bundled_autograd_cache=True, force_non_lazy_backward_lowering=True,
                                 unlift_effect_tokens=True)):
        yield


def may_keep() -> bool:
    """Whether torch's cache may hold a graph that is being compiled.

    When it looks an entry up it compares the guards on integers only: a graph that was specialised for the value of a
    float would be served for another value (torch 2.13).
    """
    context = torch._guards.TracingContext.try_get()
    shape_env = context.fake_mode.shape_env if context is not None and context.fake_mode is not None else None
    if shape_env is None:
        return True
    specialised = list(shape_env.replacements)
    for guard in shape_env.guards:
        specialised += guard.expr.free_symbols
    return not any(symbol_is_type(symbol, SymT.FLOAT) for symbol in specialised)
