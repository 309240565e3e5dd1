"""Operators of torch's database whose values no two right implementations need share, by name, with the reason.

Of these dtype, shape and strides are compared, values and gradients are not.
"""
from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from subjects import Case

RANDOM = "draws random numbers"
UNINITIALISED = "leaves its memory as it was"
SIGN = "is free in sign, phase or basis"

_BY_REASON = {
    UNINITIALISED: """empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize_ resize_as_""",
    SIGN: """svd linalg.svd svd_lowrank pca_lowrank linalg.eig linalg.eigh qr linalg.qr geqrf symeig""",
    RANDOM: """bernoulli multinomial normal normal.in_place normal.number_mean rand_like randn randn_like randint
        randint_like uniform log_normal exponential geometric cauchy randperm nn.functional.dropout
        nn.functional.dropout2d nn.functional.dropout3d nn.functional.alpha_dropout
        nn.functional.feature_alpha_dropout.with_train
        nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d nn.functional.rrelu""",
}
_REASONS = {name: reason for reason, names in _BY_REASON.items() for name in names.split()}
# Results that are uninitialised where nothing is dropped, beside others that are not.
_UNINITIALISED_RESULTS = {
    "torch.ops.aten._flash_attention_forward": ("output 2", "output 3"),
    "torch.ops.aten._efficient_attention_forward": ("output 2", "output 3"),
}
# With sequences in one tensor, those of its rows that belong to none.
_ROWS_OF_NO_SEQUENCE = {"torch.ops.aten._efficient_attention_forward": "cu_seqlens_q"}
# What they give depends on the dtype's own limits: eager's result itself is the reference.
OTHER_IN_FP64 = ("nextafter", "nan_to_num")
_RANDOM_MODULES = re.compile(r"nn\.(.*Dropout.*|RReLU|FractionalMaxPool.*)$")
_DROPOUT_ARGUMENTS = ("dropout_p", "dropout")
_DROPOUT_POSITIONS = {"nn.functional.multi_head_attention_forward": 10, "nn.functional.scaled_dot_product_attention": 4}


def is_uninitialised(name: str, result: str) -> bool:
    """Whether the values of this result ("output 2") are free, those of the operator's others not."""
    return result in _UNINITIALISED_RESULTS.get(name, ())


def reason(name: str, sample: Case | None = None) -> str | None:
    """Why the values of this operator or module are free; None where they are not."""
    if name in _REASONS:
        return _REASONS[name]
    if _RANDOM_MODULES.match(name):
        return RANDOM
    if sample is not None:
        if sample.kwargs.get(_ROWS_OF_NO_SEQUENCE.get(name, "")) is not None:
            return UNINITIALISED
        position = _DROPOUT_POSITIONS.get(name, len(sample.args))
        given = [sample.kwargs.get(argument) for argument in _DROPOUT_ARGUMENTS]
        given += sample.args[position:position + 1]
        if any(isinstance(value, float) and value > 0 for value in given):
            return RANDOM
    return None
