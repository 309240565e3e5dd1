"""A custom operator whose fake was wrong: the call that shows it raises and names the operator; what was traced with it
is dropped, for this process and for later ones."""
import itertools
import json
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch

import kiln
from daemons import Place
from kiln import stale

pytestmark = pytest.mark.usefixtures("no_fallback")

_numbers = itertools.count()

# What an operator gives: (that, a wrong declaration).
LIES: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]] = {
    "wider": (lambda x: x.double(), torch.empty_like),
    "narrower": (lambda x: x.to(torch.bfloat16), lambda x: torch.empty_like(x, dtype=torch.int64)),
    "shorter": (lambda x: x[:2].clone(), torch.empty_like),
    "longer": (lambda x: x.repeat(2, 1), torch.empty_like),
    "of lower rank": (lambda x: x.sum(0), torch.empty_like),
}


def operator(gives: Callable[..., torch.Tensor], says: list[Any]) -> tuple[Any, str]:
    """A custom operator; says[0] is its fake from then on when it is traced. Its gradient is its argument's."""
    name = f"kiln_stale::run{next(_numbers)}"
    made = torch.library.custom_op(name, gives, mutates_args=(), schema="(Tensor x) -> Tensor")
    made.register_fake(lambda x: says[0](x))
    return made, name.replace("::", ".")


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("lie", LIES)
def test_next_call_is_traced_anew(lie: str, dynamic: bool) -> None:
    gives, wrong = LIES[lie]
    says = [wrong]
    made, name = operator(gives, says)
    x = torch.randn(4, 6)
    other = torch.compile(lambda x: x.cos() + 1, backend="kiln")
    compiled = torch.compile(lambda x: made(x.sin()) * 2, backend="kiln", dynamic=dynamic)
    other(x)
    with pytest.raises(RuntimeError, match=f"{name}.*declared"):
        compiled(x)
    says[0] = lambda x: torch.empty_like(gives(x))
    before = kiln.stats()
    torch.testing.assert_close(compiled(x), gives(x.sin()) * 2)
    other(x)
    after = kiln.stats()
    assert after["contradicted"] == 1 and after["graphs"] == before["graphs"] + 1  # the other one's was not dropped


def test_memory_elsewhere_is_not_read() -> None:
    made, name = operator(lambda x: x.to("meta"), [torch.empty_like])
    with pytest.raises(RuntimeError, match=f"{name}.*another device"):
        torch.compile(lambda x: made(x.sin()) * 2, backend="kiln")(torch.randn(4, 6))


def test_backward_is_traced_anew() -> None:
    says = [lambda x: torch.empty_like(x, dtype=torch.float64)]
    made, name = operator(lambda x: x * 2, says)

    class Doubled(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x: x.clone())
        backward = staticmethod(lambda ctx, gradient: made(gradient).float())

    compiled = torch.compile(
        lambda x: Doubled.apply(x.sin()).sum(),  # type: ignore[no-untyped-call]  # torch gives it no types
        backend="kiln")
    x = torch.randn(4, 6, requires_grad=True)
    with pytest.raises(RuntimeError, match=f"{name}.*declared"):
        compiled(x).backward()
    says[0] = torch.empty_like
    compiled(x).backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())


def test_without_dropping_the_error_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stale, "drop", lambda *_: None)
    gives, wrong = LIES["wider"]
    says = [wrong]
    made, name = operator(gives, says)
    compiled = torch.compile(lambda x: made(x.sin()) * 2, backend="kiln")
    for _ in range(2):
        with pytest.raises(RuntimeError, match=f"{name}.*declared"):
            compiled(torch.randn(4, 6))
        says[0] = lambda x: torch.empty_like(gives(x))


CALL = textwrap.dedent("""
    import json, os
    import torch, kiln
    from kiln import stale
    from torch._dynamo.utils import counters

    if os.environ["DROPS"] == "no":
        stale.drop = lambda *_: None
    changed = torch.library.custom_op("kiln_tests::changed", lambda x: x.double(), mutates_args=(),
                                      schema="(Tensor x) -> Tensor")
    changed.register_fake(lambda x: torch.empty_like(x, dtype=getattr(torch, os.environ["SAYS"])))
    x = torch.ones(4, 6)
    torch.compile(lambda x: (x * 3).cos(), backend="kiln")(x)
    errors = []
    for attempt in range(2):
        try:
            y = torch.compile(lambda x: changed(x.sin()) * 2, backend="kiln")(x)
            torch.testing.assert_close(y, x.sin().double() * 2)
            errors.append("")
        except RuntimeError as error:
            errors.append(str(error))
    print(json.dumps([errors, dict(counters["aot_autograd"])]))
""")


def test_later_process_is_traced_anew(place: Place) -> None:
    def call(says: str, drops: str = "yes") -> Any:
        return json.loads(place.run(CALL, SAYS=says, DROPS=drops)[0].strip().splitlines()[-1])

    assert all("kiln_tests.changed.default" in error for error in call("float32", drops="no")[0])
    # Put right, but what the first process left is still there: the first call shows it, the second is right.
    (first, second), _ = call("float64")
    assert "kiln_tests.changed.default" in first and second == ""
    errors, cache = call("float64")
    assert errors == ["", ""] and cache["autograd_cache_hit"] > 0 and not cache.get("autograd_cache_miss")
