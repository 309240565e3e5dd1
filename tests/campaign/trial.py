"""One sample through eager, fp64, kiln and, where kiln differs from eager, AOTAutograd alone: a verdict.

`judge` says what a verdict means; only this file knows torch.compile and kiln's counts.
"""
import contextlib
import dataclasses
import itertools
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import exempt
from judge import Difference, Results, differences, errors_of_eager, largest_error
from subjects import ERRORS, Case, Subject
from verdicts import AS_AOT, ERROR, FALLBACK, NOT_CAPTURED, OK, REFUSED, SKIPPED, WRONG

_SEED = 7  # of what operators draw and of what gradients are multiplied by
_DOUBLE = (torch.float64, torch.complex128)
_NEARBY = 100
_OF_TORCH = "AOTAutograd: "  # a fallback that torch asked for
_numbers = itertools.count()
Compared: TypeAlias = tuple[Results, Results, Results | None, Results | None]  # got, eager, in fp64, in float32


@dataclasses.dataclass
class Verdict:
    verdict: str
    detail: str = ""


@dataclasses.dataclass
class Outcome:
    """What a run came to: results or an exception."""

    results: Results | None = None
    error: Exception | None = None


def lookup(backend: str) -> Callable[..., Any]:
    return torch._dynamo.lookup_backend(backend)


class Compiled:
    """`function` by torch.compile, with a code object of its own: Dynamo keeps what it compiled by that."""

    def __init__(self, function: Callable[..., Any], backend: str, dynamic: bool) -> None:
        self.graphs = 0  # that Dynamo has captured
        self.refusals: list[Exception] = []  # what the backend raised, of which Dynamo makes a graph break at times

        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        def counted(module: fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
            self.graphs += 1
            try:
                return compiler(module, inputs)
            except torch._dynamo.exc.RestartAnalysis:  # Dynamo's own: it retraces
                raise
            except Exception as error:
                self.refusals.append(error)
                raise

        compiler = lookup(backend)
        code = call.__code__.replace(co_name=f"call_{next(_numbers)}")
        own = types.FunctionType(code, call.__globals__, code.co_name, None, call.__closure__)
        self._call = torch.compile(own, backend=counted, dynamic=dynamic)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)


def run(case: Case, call: Callable[..., Any] | None = None) -> Outcome:
    """The Outcome of a case, whose tensors it uses up. call: instead of its function."""
    torch.manual_seed(_SEED)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = (call or case.function)(*case.args, **case.kwargs)
            leaves = [(f"output {number}", value) for number, value in enumerate(tree_leaves(result))]
            leaves += [(f"gradient {number}", value) for number, value in enumerate(_gradients(case, result))]
    except Exception as error:  # whatever eager raises is to be compared
        return Outcome(error=error)
    return Outcome(Results(leaves + [(f"input {number}", value) for number, value in enumerate(case.tensors())]))


def _gradients(case: Case, result: Any) -> Sequence[torch.Tensor | None]:
    leaves = case.leaves()
    outputs = [value for value in tree_leaves(case.process(result) if leaves else None)
               if isinstance(value, torch.Tensor) and value.requires_grad]
    if not outputs:
        return []
    # Drawn in fp64 and rounded to the result's dtype, so that fp64's are the same numbers where it matters.
    generator = torch.Generator().manual_seed(_SEED)
    shares = [torch.randn(value.shape, dtype=torch.complex128 if value.is_complex() else torch.float64,
                          generator=generator).to(torch.complex64 if value.is_complex() else torch.bfloat16)
              .to(value.device, value.dtype) for value in outputs]
    gradients: tuple[torch.Tensor | None, ...] = torch.autograd.grad(outputs, leaves, shares, allow_unused=True)
    return gradients


class Trial:
    """Samples of one subject and dtype, one way: with dynamic sizes one compiled function takes them all."""

    def __init__(self, subject: Subject, dtype_name: str, dynamic: bool, backend: str = "kiln",
                 fallback: Callable[[], str | None] | None = None) -> None:
        """fallback: says why graphs fell back since it was asked last, None where none did; default: kiln's counts."""
        self._subject = subject
        self._dtype_name = dtype_name
        self._dynamic = dynamic
        self._backend = backend
        self._fallback = fallback or _kiln_fallback
        self._call: Compiled | None = None

    def verdict(self, case: Case) -> Verdict:
        layout_only = exempt.reason(self._subject.name, case) is not None
        eager = run(case.copied())
        if eager.error is not None and self._dtype_name != ERRORS:
            return Verdict(SKIPPED, f"eager: {_text(eager.error)}")
        own = case.copied()
        call = self._compiled(own)
        call.refusals.clear()
        self._fallback()
        got = run(own, call)
        if eager.results is None or got.results is None:
            return self._of_errors(case, eager, got)
        return self._of_results(case, eager.results, got.results, call, own.function, layout_only)

    def _compiled(self, case: Case) -> Compiled:
        if isinstance(case.function, torch.nn.Module) or not self._dynamic:
            return Compiled(case.function, self._backend, self._dynamic)
        if self._call is None:
            self._call = Compiled(case.function, self._backend, True)
        return self._call

    def _aot(self, case: Case) -> tuple[Outcome, list[Exception]]:
        """(Outcome by AOTAutograd alone, what it raised at graphs of which Dynamo made breaks)."""
        own = case.copied()
        call = Compiled(own.function, "aot_eager", self._dynamic)
        return run(own, call), call.refusals

    def _of_results(self, case: Case, eager: Results, got: Results, call: Compiled, function: Callable[..., Any],
                    layout_only: bool) -> Verdict:
        fallback = self._fallback()
        by_itself = layout_only or self._subject.name in exempt.OTHER_IN_FP64
        wider, narrower = (None, None) if by_itself else _in_other_dtypes(case)
        found = self._without_free(differences(got, eager, wider, narrower, layout_only))
        if found and not by_itself and all(difference.kind == "value" for difference in found):
            found = _at_inputs_nearby(case, call, function, (got, eager, wider, narrower))
        if found or call.refusals:
            aot, refusals = self._aot(case)
            if aot.results is None or (call.refusals and refusals):
                return Verdict(REFUSED, _text(aot.error or refusals[0]))
            if call.refusals:
                return Verdict(ERROR, f"Dynamo broke the graph at {_text(call.refusals[0])}")
            if not self._without_free(differences(got, aot.results, wider, narrower, layout_only)):
                return Verdict(AS_AOT, str(found[0]))
            return Verdict(WRONG, "; ".join(map(str, found[:3])) + (f" (fell back: {fallback})" if fallback else ""))
        if fallback:
            aot, _ = self._aot(case)
            refused = aot.error is not None and fallback.startswith(_OF_TORCH)
            return Verdict(REFUSED if refused else FALLBACK, fallback)
        return Verdict(OK) if call.graphs else Verdict(NOT_CAPTURED)

    def _without_free(self, found: list[Difference]) -> list[Difference]:
        return [difference for difference in found
                if difference.kind != "value" or not exempt.is_uninitialised(self._subject.name, difference.where)]

    def _of_errors(self, case: Case, eager: Outcome, got: Outcome) -> Verdict:
        if eager.error is not None and isinstance(got.error, type(eager.error)):  # the same handlers take it
            return Verdict(OK)
        aot, _ = self._aot(case)
        if type(aot.error) is type(got.error):
            return Verdict(AS_AOT if eager.error is not None else REFUSED, _errors(got=got, eager=eager))
        if eager.error is None and aot.error is not None:
            return Verdict(REFUSED, _errors(got=got, aot_eager=aot))
        return Verdict(ERROR, _errors(got=got, eager=eager, aot_eager=aot))


def _at_inputs_nearby(case: Case, call: Compiled, function: Callable[..., Any], here: Compared) -> list[Difference]:
    """[Difference] where eager's error is its largest at this input and at some nearby.

    Of few numbers eager's at one input may be next to nothing by chance. function: the compiled call's own."""
    if not any(tensor.is_floating_point() or tensor.is_complex() for tensor in case.tensors()):
        return _of_rounding(case, *here)
    runs = [here]
    for seed in range(_NEARBY):
        near = case.nearby(seed)
        eager, own = run(near.copied()), near.copied()
        if isinstance(function, torch.nn.Module) and isinstance(own.function, torch.nn.Module):
            function.load_state_dict(own.function.state_dict())
        own.function = function
        got = run(own, call)
        if eager.results and got.results and eager.results.names() == here[1].names():
            runs.append((got.results, eager.results, *_in_other_dtypes(near)))
    own_errors = [max(errors) for errors in zip(*(errors_of_eager(*one[1:]) for one in runs))]
    if here[3] is not None:
        own_errors = list(map(max, own_errors, _of_last_places(case, here[1])))
    return next(filter(None, (differences(*one, own_errors=own_errors) for one in runs)), [])


def _of_last_places(case: Case, eager: Results) -> list[float]:
    """By leaf, the most that moving the last places of a case's float64 inputs does: eager may compute the same in
    float32 by way of float64, and then that tells nothing of its error in float64."""
    found = [0.0] * len(eager.leaves)
    for seed in range(_NEARBY):
        moved = run(case.nearby(seed, torch.finfo(torch.float64).eps))
        if moved.results and moved.results.names() == eager.names():
            pairs = zip(moved.results.leaves, eager.leaves)
            found = [max(most, largest_error(own, other)) for most, ((_, other), (_, own)) in zip(found, pairs)]
    return found


class _Rounding(TorchDispatchMode):
    """Of every operator's numbers each other one, drawn, is the next towards zero. float64 stays."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives it no types
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, operator: torch._ops.OpOverload, types: Any, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        result = operator(*args, **kwargs or {})
        moves = isinstance(result, torch.Tensor) and result.is_floating_point() and not operator.is_view
        if not moves or result.dtype == torch.float64:
            return result
        drawn = torch.rand(result.shape, generator=self._generator) < 0.5
        return result * torch.where(drawn, 1 - torch.finfo(result.dtype).eps / 2, 1.0).to(result.dtype)


def _of_rounding(case: Case, got: Results, eager: Results, wider: Results | None,
                 narrower: Results | None) -> list[Difference]:
    """The same of a case that has no numbers to move: eager's own roundings are moved instead."""
    own_errors = errors_of_eager(eager, wider, narrower)
    for seed in range(_NEARBY):
        with _Rounding(seed):
            moved = _in_other_dtypes(case)[1] if narrower is not None else run(case.copied()).results
        errors = errors_of_eager(*((eager, wider, moved) if narrower is not None else (moved, wider, None)))
        own_errors = list(map(max, own_errors, errors))
    return differences(got, eager, wider, narrower, own_errors=own_errors)


def _kiln_fallback() -> str | None:
    import kiln

    fallbacks = kiln.stats()["fallbacks"]
    kiln.reset_stats()
    # kiln's own first: what torch refuses of one graph says nothing of another.
    return min(fallbacks, key=lambda reason: reason.startswith(_OF_TORCH), default=None)


def _errors(**outcomes: Outcome) -> str:
    return "; ".join(f"{name}: {_text(outcome.error)}" for name, outcome in outcomes.items())


def _in_other_dtypes(case: Case) -> tuple[Results | None, Results | None]:
    """Results in fp64, and of fp64 in float32: None where there are none."""
    dtypes = case.dtypes()
    narrower = run(case.narrower()).results if dtypes.intersection(_DOUBLE) else None
    if dtypes and dtypes <= set(_DOUBLE):
        return None, narrower
    with _default_dtype(torch.float64):
        return run(case.wider()).results, narrower


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """What operators give that make floats of integers."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _text(error: Exception | None) -> str:
    if error is None:
        return "raises nothing"
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {' / '.join(lines[:2])[:300]}"
