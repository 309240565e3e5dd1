"""A process of tests/bench/measure.py as an object: started, asked, ended."""
from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import tempfile
import time
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from nursery import Nursery


class Failed(Exception):
    """The process ended, or ran past its limit; the message is its last line of errors."""


class Cell:
    """One way of running one model; `start` is what the process said of its first call."""

    def __init__(self, nursery: Nursery, arguments: list[str], directory: str, timeout: float = 600.0) -> None:
        """arguments: of measure.py."""
        environment = {"TORCHINDUCTOR_CACHE_DIR": os.path.join(directory, "inductor"),
                       "KILN_STORE": os.path.join(directory, "kiln"),
                       "KILN_RUNTIME_DIR": os.path.join(directory, "run"),
                       "CUDA_CACHE_PATH": os.path.join(directory, "driver"),  # what it translated from PTX
                       "TOKENIZERS_PARALLELISM": "false"}
        self._timeout = timeout
        self._errors = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - closed with the process
        self._commands: int | None
        read, self._commands = os.pipe()
        answers, write = os.pipe()
        try:
            self._process = nursery.start(arguments, environment, read, write, self._errors.fileno())
        finally:
            os.close(read)
            os.close(write)
        self._answers = os.fdopen(answers)
        self.start = self._reply()

    def ask(self, command: str) -> Any:
        assert self._commands is not None
        with contextlib.suppress(BrokenPipeError):  # the reply's absence says so, with the reason
            os.write(self._commands, (command + "\n").encode())
        return self._reply()

    def close(self) -> None:
        """Ends the process and waits for its end."""
        if self._commands is None:
            return
        os.close(self._commands)
        self._commands = None
        if not self._ended_in(30):
            os.kill(self._process, signal.SIGKILL)
            self._ended_in(30)
        self._answers.close()
        self._errors.close()

    def __enter__(self) -> Cell:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ended_in(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while os.path.exists(f"/proc/{self._process}"):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def _reply(self) -> Any:
        deadline = time.monotonic() + self._timeout
        while True:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self._fail(f"no answer in {self._timeout:.0f} s")
            line = self._answers.readline()
            if not line:
                self._ended_in(30)
                self._errors.seek(0)
                self._fail((self._errors.read().strip().splitlines() or ["no message"])[-1][:200])
            try:
                return json.loads(line)
            except json.JSONDecodeError:
                continue  # something of the model's or of torch's own

    def _fail(self, reason: str) -> NoReturn:
        if not self._ended_in(0):
            os.kill(self._process, signal.SIGKILL)
        self.close()
        raise Failed(reason)
