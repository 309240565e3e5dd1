"""kiln.profile: every kernel and library call of a graph, with its time, and only while it is on."""
import pytest
import torch

import kiln


def test_profile(no_fallback: None) -> None:
    compiled = torch.compile(lambda x, w: torch.softmax(x @ w, -1), backend="kiln")
    x, w = torch.randn(64, 128), torch.randn(128, 256)
    compiled(x, w)
    with kiln.profile() as profile:
        for _ in range(3):
            compiled(x, w)
    compiled(x, w)  # not in it
    kernels = [line for line in profile.lines if line.kernel is not None]
    calls = [line for line in profile.lines if line.name == "aten.mm.default"]
    assert [line.runs for line in kernels] == [3] and [line.runs for line in calls] == [3]
    assert "kiln.softmax_exp.default" in kernels[0].operators
    assert kernels[0].bytes >= 2 * 64 * 256 * 4
    assert 0 < kernels[0].least_seconds <= kernels[0].seconds / 3 + 1e-9
    assert profile.seconds == pytest.approx(sum(line.seconds for line in profile.lines))
    assert "aten.mm.default" in str(profile)


def test_a_second_profile_starts_anew(no_fallback: None) -> None:
    compiled = torch.compile(lambda x: x.sin() * 2, backend="kiln")
    x = torch.randn(100)
    compiled(x)
    for runs in (2, 5):
        with kiln.profile() as profile:
            for _ in range(runs):
                compiled(x)
        assert [line.runs for line in profile.lines if line.kernel is not None] == [runs]


def test_one_profile_at_a_time() -> None:
    with kiln.profile(), pytest.raises(RuntimeError, match="another profile"), kiln.profile():
        pass
    with kiln.profile():
        pass


def test_nothing_is_timed_outside(no_fallback: None) -> None:
    compiled = torch.compile(lambda x: x.sin() * 2, backend="kiln")
    compiled(torch.randn(100))
    with kiln.profile() as profile:
        pass
    assert profile.lines == []
