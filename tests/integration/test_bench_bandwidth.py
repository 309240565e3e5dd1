"""tests/bench/bandwidth.c: the bare loops that kernels are held against do what their names say."""
import os
import pathlib
import sys
from collections.abc import Iterator

import pytest
import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bench"))
import c_library
import kernels

_COUNT, _LAG, _THREADS = 1 << 16, 4096, 2


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(_THREADS)
    yield
    torch.set_num_threads(before)


def _pass(walk: str, lag: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """What a copy's bare loops read and what they wrote."""
    read, written = torch.randn(_COUNT), torch.zeros(_COUNT)
    roof = kernels.Roof(torch, kernels.COPY, [read])
    roof.take(written)
    assert roof.seconds(walk, lag) > 0
    return read, written


@pytest.mark.parametrize("walk", kernels.WALKS)
def test_copies_are_whole(walk: str) -> None:
    assert torch.equal(*_pass(walk))


@pytest.mark.parametrize("walk", kernels.WALKS)
def test_what_is_read_twice_is_copied_up_to_the_lag(walk: str) -> None:
    parts = _THREADS * (4 if walk == "in four streams" else 1)
    read, written = (tensor.view(parts, -1) for tensor in _pass(walk, _LAG))
    assert torch.equal(written[:, :-_LAG], read[:, :-_LAG]) and not written[:, -_LAG:].any()


@pytest.mark.parametrize("lag", [1, _COUNT])
def test_lags_that_do_not_fit_are_refused(lag: int) -> None:
    with pytest.raises(RuntimeError, match="bare loop"):
        _pass("in one stream", lag)


def test_the_compiler_keeps_what_asks_ahead(tmp_path: pathlib.Path) -> None:
    """GCC takes a function that only prefetches for one that does nothing, and leaves its calls out."""
    assembly = tmp_path / "bandwidth.s"
    c_library.compile_to(str(assembly), "bandwidth.c", *kernels.BANDWIDTH_FLAGS, "-S")
    text = assembly.read_text()
    assert "prefetcht1" in text and "prefetchnta" in text
