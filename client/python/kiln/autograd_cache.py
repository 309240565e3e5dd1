"""Joining AOTAutograd's cache, so that a new process traces no joint graph that an earlier one has traced.

torch keeps the entry in its own local cache; the compilers' results in it are kiln's OutputCode objects, which
hold a key and are loaded from the service. What torch's key does not cover is added through `cache_key_tag`.
"""
import contextlib

import torch
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler

from .compiled import CompiledGraph


def serializable(compile_function):
    return SerializableAOTDispatchCompiler(CompiledGraph, compile_function)


@contextlib.contextmanager
def joined(tag):
    """In force while one graph of Dynamo's goes through AOTAutograd.

    The backward is compiled within it as well: overrides of torch's configuration are per thread, and the autograd
    engine may compile a late backward on another one.
    """
    outer = torch.compiler.config.cache_key_tag
    with (torch.compiler.config.patch(cache_key_tag=f"{outer}{tag}"),
          torch._functorch.config.patch(bundled_autograd_cache=True, force_non_lazy_backward_lowering=True)):
        yield
