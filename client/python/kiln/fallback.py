"""What happens to a graph that kiln does not compile: it runs as torch would run it, and that is counted.

KILN_FALLBACK=eager (default) runs the graph operator by operator; KILN_FALLBACK=error raises instead, for people
who would rather know. Each reason is warned of once a process.
"""
import contextlib
import copy
import os
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import fx

from . import _C, records
from .errors import Unsupported
from .program_record import FallbackRecord

Boxed: TypeAlias = Callable[[list[Any]], Any]  # takes its inputs in a list, which it empties

_warned: set[str] = set()


def policy() -> str:
    """"eager" or "error". Raises ValueError for anything else."""
    value = os.environ.get("KILN_FALLBACK", "eager")
    if value not in ("eager", "error"):
        raise ValueError(f"kiln: KILN_FALLBACK={value!r}; valid values are eager, error")
    return value


def reset() -> None:
    _warned.clear()


def reason_of(code: str, message: str) -> str:
    """A short reason to count by, from a status of the service."""
    if code == "UNAVAILABLE":
        return "service unavailable"
    if code == "DEADLINE_EXCEEDED":
        return "service too slow"
    first = message.split("\n", 1)[0]
    if len(first) > 200:  # what is wrong stands at the end, behind names of any length
        first = f"{first[:98]} … {first[-99:]}"
    if code == "UNIMPLEMENTED":
        return "unsupported: " + first.rsplit("unsupported:", 1)[-1].strip()
    return f"{code.lower()}: {first}"


def reason_of_error(error: BaseException) -> tuple[str, str]:
    """(a short reason to count by, a message for people) of what ended the compile of a graph, whatever it is."""
    if isinstance(error, Unsupported):
        return (f"unsupported: {error}",) * 2
    if isinstance(error, _C.ServiceError):
        code, message = error.args
        reason = reason_of(code, message)
        return f"without the gang: {reason}" if isinstance(error, _C.NoVerdict) else reason, message
    first = str(error).split("\n", 1)[0][:200]
    reason = f"unexpected {type(error).__name__}: {first}"
    return reason, f"{reason} ({_place_of(error)})"


def _place_of(error: BaseException) -> str:
    """Where it was raised, for whoever is to fix it."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else "no place"


def boxed(module: fx.GraphModule) -> Boxed:
    """The FX graph as a function that takes its inputs in a list and frees each at its last use.

    A view of it copies where it must: some operators' results have other strides when they run than when torch traced
    them (negative padding, as in LongT5's gradient, which torch's own aot_eager cannot run)."""
    graph = copy.deepcopy(module.graph)
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        node.target = torch.ops.aten.reshape.default
    graph.set_codegen(fx.graph._BoxedCodeGen())
    forward = fx.GraphModule(module, graph).forward

    def run(args: list[Any]) -> Any:
        return forward(args)

    return as_boxed(run)


def as_boxed(run: Boxed) -> Boxed:
    """`run`, which torch is told to give a list that is its own."""
    run._boxed_call = True  # type: ignore[attr-defined]  # torch asks functions for it
    return run


def run_without_kiln(module: fx.GraphModule, title: str, reason: str, message: str,
                     cause: BaseException) -> tuple[Boxed, FallbackRecord]:
    """(a boxed callable that runs the graph's operators one by one, its record), counted under `reason`.

    Raises Unsupported under KILN_FALLBACK=error, from `cause`.
    """
    return boxed(module), _note_without_kiln(title, reason, message, cause)


def run_as_captured(module: fx.GraphModule, title: str, cause: BaseException) -> Callable[..., Any]:
    """A callable that runs Dynamo's graph as eager would, gradients too: AOTAutograd could not trace it, for `cause`,
    which eager raises as well or does not meet; or kiln's own part of tracing failed, which is told as such. Raises
    Unsupported under KILN_FALLBACK=error."""
    reason, message = reason_of_error(cause)
    if not _is_own(cause):
        reason, message = f"AOTAutograd: {reason}", f"torch's AOTAutograd cannot trace it, {message}"
    _note_without_kiln(title, reason, message, cause)
    return module.forward


def _is_own(error: BaseException) -> bool:
    """Whether kiln's code raised it, not torch's."""
    kiln, torch_itself = os.path.dirname(__file__), os.path.dirname(torch.__file__)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith((kiln + os.sep, torch_itself + os.sep)):
            return frame.filename.startswith(kiln + os.sep)
    return False


def _note_without_kiln(title: str, reason: str, message: str, cause: BaseException) -> FallbackRecord:
    if policy() == "error":
        raise Unsupported(f"kiln did not compile {title}: {message} (KILN_FALLBACK=error is set)") from cause
    records.count_fallback(reason)
    record: FallbackRecord = {"title": title, "fallback": reason, "message": message}
    records.record_graph(record)
    _warn_once(reason, f"{title} runs without kiln: {message}. The result is the same, as fast as eager. "
                       "kiln.stats()['fallbacks'] counts such graphs; KILN_FALLBACK=error raises here.")
    return record


def note_not_kept(reason: str) -> None:
    """A compiled program that the service's store refused: it runs, and the next process compiles it again."""
    records.count("not_kept")
    _warn_once("not kept", f"compiled programs are not kept: {reason}. They run, but every new process compiles them "
                           "again; `kilnctl doctor` says more, kiln.stats()['not_kept'] counts them.")


def note_recovered(what: str) -> None:
    """A daemon or compiler process that ended, `what` as a sentence's beginning; others did its work."""
    records.count("recovered")
    _warn_once("recovered", f"{what}; another took over and nothing is lost. kiln.stats()['recovered'] counts this, "
                            "`kilnctl doctor` says more.")


def note_refused(reason: str) -> None:
    """An answer of the service that was not taken; it was asked again and gave one that was."""
    records.count("refused")
    _warn_once("refused", f"an answer of the compile service was not taken: {reason}. It was asked again, and nothing "
                          "is lost. kiln.stats()['refused'] counts this.")


def note_without_gang(reason: str) -> None:
    """A rank that knows no gang: what it is served may be another variant than the others'."""
    _warn_once("without gang", f"this rank does not know its gang, and may run other variants than the others: {reason}"
                               ". KILN_GANG=strict raises here, KILN_GANG=off asks for no gang.")


def note_not_measured(reason: str) -> None:
    """A program of max-autotune of which not all was measured: the rest runs as in the default mode."""
    records.count("not_measured")
    _warn_once("not measured", f"max-autotune has not measured all of a program: {reason}. The rest runs "
                               "as in the default mode; `kilnctl rm` of the program makes the next compile measure.")


@contextlib.contextmanager
def left_out(what: str) -> Iterator[None]:
    """Around what makes a graph faster and no more: where it fails the graph does without, counted.

    Each step of `what` leaves a graph that is right. Raises Unsupported under KILN_FALLBACK=error."""
    try:
        yield
    except Exception as error:
        _, message = reason_of_error(error)
        if policy() == "error":
            raise Unsupported(f"{what}: {message} (KILN_FALLBACK=error is set)") from error
        records.count("left_out")
        _warn_once(f"left out {what}", f"{what} failed, and a graph does without: {message}. The result is the same; "
                                       "kiln.stats()['left_out'] counts this, KILN_FALLBACK=error raises here.")


def _warn_once(about: str, text: str) -> None:
    if about not in _warned:
        _warned.add(about)
        warnings.warn(f"kiln: {text}", RuntimeWarning, stacklevel=3)
