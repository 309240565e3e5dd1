"""A process of tests/bench/measure.py as an object: started, asked, ended."""
import json
import os
import select
import subprocess
import sys
import tempfile
import time

_HERE = os.path.dirname(os.path.abspath(__file__))


class Failed(Exception):
    """The process ended, or ran past its limit; the message is its last line of errors."""


class Cell:
    """One way of running one model; `start` is what the process said of its first call."""

    def __init__(self, model, task, way, directory, dtype="float32", dynamic=False, timeout=600.0):
        environment = dict(os.environ,
                           TORCHINDUCTOR_CACHE_DIR=os.path.join(directory, "inductor"),
                           KILN_STORE=os.path.join(directory, "kiln"),
                           KILN_RUNTIME_DIR=os.path.join(directory, "run"),
                           TOKENIZERS_PARALLELISM="false")
        command = [sys.executable, os.path.join(_HERE, "measure.py"), model, task, way, "--dtype", dtype]
        if dynamic:
            command.append("--dynamic")
        self._timeout = timeout
        self._errors = tempfile.TemporaryFile(mode="w+")
        self._process = subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=self._errors)
        self.start = self._reply()

    def ask(self, command):
        try:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the reply's absence says so, with the reason
        return self._reply()

    def close(self):
        if self._process.poll() is None:
            self._process.stdin.close()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._errors.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _reply(self):
        deadline = time.monotonic() + self._timeout
        while True:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self._process.kill()
                raise Failed(f"no answer in {self._timeout:.0f} s")
            line = self._process.stdout.readline()
            if not line:
                self._process.wait()
                self._errors.seek(0)
                raise Failed((self._errors.read().strip().splitlines() or ["no message"])[-1][:200])
            try:
                return json.loads(line)
            except json.JSONDecodeError:
                continue  # something of the model's or of torch's own
