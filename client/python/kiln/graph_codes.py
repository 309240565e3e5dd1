"""Numbers of `proto/kiln/v1/graph.proto` for what torch has objects of, and how nodes' arguments travel."""
from typing import TypeAlias

import torch

Encoded: TypeAlias = tuple[str, bytes]  # an argument's name, and its Argument message

DTYPES = {
    torch.bool: 1, torch.uint8: 2, torch.int8: 3, torch.int16: 4, torch.int32: 5, torch.int64: 6,
    torch.float16: 7, torch.bfloat16: 8, torch.float32: 9, torch.float64: 10, torch.complex64: 11,
    torch.complex128: 12,
}
DEVICES = {"cpu": 1, "cuda": 2}
MEMORY_FORMATS = {torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2,
                  torch.channels_last_3d: 3}
