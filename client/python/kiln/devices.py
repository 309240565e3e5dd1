"""Where a graph runs. A program runs on one device: with any tensor on a GPU, that is the GPU.

What such a graph has on the CPU (numbers of no dimension, tensors that it copies to the GPU or from there) takes part
there: the results are the same, tensors from outside are brought over before each call, and what leaves the graph on
the CPU after it. An input that the graph returns (saved for a backward) is returned as it came. What a graph
writes into a tensor on the CPU runs in Python, and so does what it has on another GPU.
"""
import collections
import dataclasses
from collections.abc import Container, Sequence
from typing import Any

import torch
from torch import fx


def gpu_of(module: fx.GraphModule) -> torch.device | None:
    """The GPU that the graph runs on, of several that with most of its values; None is the CPU."""
    found = _gpus(module)
    return max(found, key=lambda gpu: (found[gpu], -(gpu.index or 0))) if found else None


@dataclasses.dataclass(frozen=True)
class PassedInput:
    """An output that is an input of the graph's, on the CPU."""

    position: int

    def __call__(self, inputs: Sequence[Any]) -> Any:
        return inputs[self.position]


def any_on_gpu(module: fx.GraphModule) -> bool:
    """Whether any value of the graph, of whatever kind, is on a GPU."""
    return bool(_gpus(module))


def architecture(gpu: torch.device | None) -> str:
    """"sm_90"; "" for the CPU."""
    if gpu is None:
        return ""
    major, minor = torch.cuda.get_device_capability(gpu)
    return f"sm_{major}{minor}"


def multiprocessors(gpu: torch.device | None) -> int:
    """How many; 0 for the CPU."""
    return 0 if gpu is None else torch.cuda.get_device_properties(gpu).multi_processor_count


def convolves_without_tf32(gpu: torch.device | None) -> bool:
    """Whether torch computes convolutions of float32 on `gpu` without rounding to TF32."""
    if gpu is None:
        return False
    try:
        return not torch.backends.cudnn.allow_tf32
    except RuntimeError:  # torch's old and new settings contradict each other
        return False


def has_onednn(gpu: torch.device | None) -> bool:
    """Whether torch computes with oneDNN on the CPU: it is built with it, and it is not switched off. Not for `gpu`."""
    return gpu is None and torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)


def inputs_from_cpu(module: fx.GraphModule, gpu: torch.device | None,
                    float_inputs: Container[int] = ()) -> tuple[int, ...]:
    """Positions of the graph's inputs that have to be brought to `gpu` before a call, `float_inputs` among them."""
    if gpu is None:
        return ()
    placeholders = (node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder")
    return tuple(position for position, value in enumerate(placeholders)
                 if position in float_inputs or (isinstance(value, torch.Tensor) and value.device.type == "cpu"))


def brought_to(gpu: torch.device, tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` of the CPU as it is now, on `gpu`: the caller may write it as soon as this returns. A copy from pageable
    memory has been read by then, one from pinned memory has not; what is read instead is a copy in pageable memory."""
    return (tensor.clone() if tensor.is_pinned() else tensor).to(gpu, non_blocking=True)


def brought_back(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` of a GPU on the CPU, with its strides."""
    result = tensor.cpu()
    if result.stride() == tensor.stride() or tensor.numel() == 0:
        return result
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return tensor.as_strided((span,), (1,)).cpu().as_strided(tensor.shape, tensor.stride())


def _gpus(module: fx.GraphModule) -> collections.Counter[torch.device]:
    return collections.Counter(value.device for node in module.graph.nodes for value in _values(node)
                               if isinstance(value, torch.Tensor) and value.device.type == "cuda")


def _values(node: fx.Node) -> Sequence[Any]:
    value = node.meta.get("val")
    return value if isinstance(value, (list, tuple)) else (value,)
