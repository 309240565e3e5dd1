"""Graphs that run without kiln for want of the service, asked for again: after KILN_RETRY seconds, then after pauses
that double, for as long as the graph lives.

One thread of this process asks for one graph after the other. The call of such a graph starts it where it does not run
(the first time, and in a process that was forked), and it ends when no graph waits. No call waits for it.

A member of a gang is never asked for again: what this rank alone ran compiled from then on would differ from the
others'. Nor is a graph that the service refused: its answer would be the same.

Locks: `_work` is held wherever the thread does more than wait, by whoever forks too, so that no child inherits a lock
that a thread has which the child has not.
"""
from __future__ import annotations

import atexit
import contextlib
import ctypes
import enum
import os
import random
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from . import _C, gang
from .compiled import CompiledGraph, Use
from .program_record import FallbackRecord

_FIRST_PAUSE = 30.0
_PAUSE_MAX = 600.0
_LATER_MAX = 1.25  # times the pause: those who fell back together do not come again together
_LAST_WORDS_SECONDS = 0.5  # that a process waits at its end for the thread to see it
_TRANSIENT = ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")
_CAPTURE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED

_random = random.Random()  # the program's own numbers stay as they are


class Asked(NamedTuple):
    """What the service was asked for."""

    compiled: CompiledGraph
    graph: bytes  # canonical
    symbols: Mapping[str, torch.SymInt]


def first_pause() -> float | None:
    """KILN_RETRY in seconds; None: off. Raises ValueError for anything else."""
    text = os.environ.get("KILN_RETRY") or str(_FIRST_PAUSE)
    if text == "off":
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= _PAUSE_MAX:
        raise ValueError(f"kiln: KILN_RETRY={text!r}; it takes a number of seconds above 0, up to {_PAUSE_MAX:.0f}, "
                         "or off")
    return seconds


class Outcome(enum.Enum):
    NONE_YET = enum.auto()
    LOADED = enum.auto()  # `compiled` can run
    TRACE_ANEW = enum.auto()  # as if the graph had never been compiled
    STAYS = enum.auto()  # as it is


class Retry:
    """One graph that waits. Threads: any; it waits as long as somebody holds it."""

    def __init__(self, asked: Asked, record: FallbackRecord, pause: float) -> None:
        self.compiled = asked.compiled
        self._asked = asked
        self._record = record
        self._pause = pause
        self.outcome = Outcome.NONE_YET
        self._wait()

    @property
    def due(self) -> float:
        """In time.monotonic()'s seconds."""
        return self._record["due"]

    def now(self) -> Outcome:
        """What came of it. Sees to it that the thread runs where it is not over."""
        if self.outcome is Outcome.NONE_YET:
            _thread.wake()
        return self.outcome

    def ask(self) -> None:
        """On the thread, without its lock."""
        if gang.is_member():  # since then
            with _thread.work:
                self._end(Outcome.STAYS)
            return
        try:
            with _beside_captures(self.compiled.gpu):
                adopt = self.compiled.ask_again(self._asked.graph, self._asked.symbols)
                with _thread.work:
                    self._take(adopt())
        except Exception as error:
            with _thread.work:
                if is_transient(error):
                    self._pause = min(2 * self._pause, _PAUSE_MAX)
                    self._wait()
                else:  # torch retraces, and then it is told as any other
                    self._end(Outcome.TRACE_ANEW)

    def _take(self, use: Use | None) -> None:
        if use is not None:
            use()
        self._end(Outcome.TRACE_ANEW if use is None else Outcome.LOADED)

    def _end(self, outcome: Outcome) -> None:
        self._record.pop("due", None)
        self.outcome = outcome

    def _wait(self) -> None:
        self._record["due"] = time.monotonic() + self._pause * _random.uniform(1, _LATER_MAX)


def is_transient(error: BaseException) -> bool:
    """Whether the service may answer otherwise later, to this process as to others."""
    return (isinstance(error, _C.ServiceError) and not isinstance(error, _C.NoVerdict) and error.args[0] in _TRANSIENT
            and not gang.is_member())


def wanted(error: BaseException, asked: Asked | None, record: FallbackRecord) -> Retry | None:
    """The Retry of a graph that `error` ended the compile of; None where asking again is of no use, or is not
    wanted."""
    pause = first_pause()
    if pause is None or asked is None or not is_transient(error):
        return None
    retry = Retry(asked, record, pause)
    _thread.add(retry)
    return retry


def waiting() -> list[dict[str, Any]]:
    """What waits: `title`, and `seconds` until it is asked for again."""
    now = time.monotonic()
    return [{"title": retry.compiled.title, "seconds": round(max(0.0, retry.due - now), 1)}
            for retry in sorted(_thread.open(), key=lambda retry: retry.due)]


class _Thread:
    """The thread and what it asks for."""

    def __init__(self) -> None:
        self.work = threading.Lock()
        self._lock = threading.Lock()  # of what follows
        self._retries: weakref.WeakSet[Retry] = weakref.WeakSet()
        self._running: threading.Thread | None = None
        self._ending = False
        self._changed = threading.Event()

    def add(self, retry: Retry) -> None:
        with self._lock:
            self._retries.add(retry)
        self._changed.set()

    def open(self) -> list[Retry]:
        with self._lock:
            return [retry for retry in self._retries if retry.outcome is Outcome.NONE_YET]

    def wake(self) -> None:
        if self._running is not None or self._ending:
            return
        with self._lock:
            if self._running is None:
                self._running = threading.Thread(target=self._run, name="kiln-retry", daemon=True)
                self._running.start()

    def _run(self) -> None:
        while not self._ending:
            self._changed.clear()
            with self.work:
                pause = self._pause()
            if pause is None:
                return
            self._changed.wait(pause)
            for retry in self._due():
                if self._ending:
                    return
                retry.ask()

    def _pause(self) -> float | None:
        """Until one is due; None: there is none, and the thread has ended. Holds none of them longer."""
        dues = [retry.due for retry in self.open()]
        if dues:
            return max(0.0, min(dues) - time.monotonic())
        self._running = None
        return None

    def _due(self) -> Iterator[Retry]:
        now = time.monotonic()
        with self.work:
            due = [weakref.ref(retry) for retry in self.open() if retry.due <= now]
        for reference in due:
            if (retry := reference()) is not None:
                yield retry

    def end(self) -> None:
        """At the end of the process."""
        self._ending = True
        self._changed.set()
        _C.end_background()
        if (running := self._running) is not None:
            running.join(_LAST_WORDS_SECONDS)

    def renew(self) -> None:
        """In a child: the thread is the parent's, and so are the locks."""
        self.work = threading.Lock()
        self._lock = threading.Lock()
        self._running = None
        self._changed = threading.Event()


@contextlib.contextmanager
def _beside_captures(gpu: torch.device | None) -> Iterator[None]:
    """Loads for `gpu`, whatever another thread records there: by default CUDA breaks that off."""
    if gpu is None:
        yield
        return
    mode = ctypes.c_int(_CAPTURE_RELAXED)
    exchange = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    with torch.cuda.device(gpu):
        exchange(ctypes.byref(mode))
        try:
            yield
        finally:
            exchange(ctypes.byref(mode))


_thread = _Thread()
atexit.register(_thread.end)
os.register_at_fork(before=lambda: _thread.work.acquire(), after_in_parent=lambda: _thread.work.release(),
                    after_in_child=_thread.renew)
