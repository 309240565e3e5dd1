"""The embedded daemon of a directory: processes that use it; finding, asking and stopping it. Imports nothing of the
tests."""
from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from typing import Any


class Place:
    """Directories of one daemon, and Python processes that use it."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = str(root)
        self.runtime_dir = os.path.join(self.root, "run")
        self.store_dir = os.path.join(self.root, "store")
        self.processes: list[subprocess.Popen[Any]] = []
        self.environment = {"KILN_RUNTIME_DIR": self.runtime_dir, "KILN_STORE": self.store_dir,
                            "TORCHINDUCTOR_CACHE_DIR": os.path.join(self.root, "torch")}

    def start(self, code: str, **environment: str) -> subprocess.Popen[str]:
        everything = {**os.environ, **self.environment, **environment}
        everything["PYTHONPATH"] = os.pathsep.join(
            [os.path.dirname(os.path.abspath(__file__)), everything.get("PYTHONPATH", "")])
        process = subprocess.Popen([sys.executable, "-c", code], env=everything, text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        self.processes.append(process)
        return process

    def run(self, code: str, timeout: float = 240, **environment: str) -> tuple[str, str]:
        """What the process prints to stdout and stderr; fails if it fails."""
        process = self.start(code, **environment)
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        assert process.returncode == 0, errors[-4000:]
        return output, errors

    def stop(self, signal_number: signal.Signals = signal.SIGTERM) -> bool:
        return stop_daemon(self.runtime_dir, signal_number)


def daemon_pid(runtime_dir: str) -> int | None:
    """The process that listens on the socket, or None."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(os.path.join(runtime_dir, "kilnd.sock"))
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", peer)[0])
    except OSError:
        return None
    finally:
        connection.close()


def worker_pids(pid: int) -> list[int]:
    """The compiler processes below a daemon, but for those that end as they are listed, as threads do."""
    found = []
    for thread in threads(pid):
        for child in map(int, text_of(f"/proc/{pid}/task/{thread}/children").split()):
            found += [child] if text_of(f"/proc/{child}/comm").startswith("kiln-worker") else worker_pids(child)
    return found


def threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return []


def text_of(path: str) -> str:
    """Empty where there is nothing any more."""
    try:
        with open(path) as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def stop_daemon(runtime_dir: str, signal_number: signal.Signals = signal.SIGTERM) -> bool:
    """Stops the daemon and waits until it is gone. Returns whether there was one."""
    pid = daemon_pid(runtime_dir)
    if pid is None:
        return False
    os.kill(pid, signal_number)
    for _ in range(200):
        if not os.path.exists(f"/proc/{pid}"):
            return True
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    return True


def start_daemon(place: Place) -> int:
    """Starts the embedded daemon of `place` as a client would, and waits until it serves; its process's id."""
    from kiln.environment import daemon_binary

    os.makedirs(place.runtime_dir, mode=0o700)
    subprocess.run([daemon_binary(), "--embedded", "--runtime-dir", place.runtime_dir, "--store", place.store_dir],
                   check=True, timeout=60)
    deadline = time.time() + 60
    while (pid := daemon_pid(place.runtime_dir)) is None:
        assert time.time() < deadline
        time.sleep(0.05)
    return pid


def kilnctl(place: Place, *words: str) -> subprocess.CompletedProcess[str]:
    """The finished kilnctl process that asked the daemon of `place`."""
    from kiln.environment import daemon_binary

    program = os.path.join(os.path.dirname(daemon_binary()), "kilnctl")
    return subprocess.run([program, *words], text=True, env={**os.environ, **place.environment}, capture_output=True,
                          timeout=60)
