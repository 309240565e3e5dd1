"""Processes of tests/bench/measure.py without the seconds that importing torch and transformers takes, which are not
part of any figure: one process imports both and then forks for each that is asked for. It has one thread and has run
nothing, so that a child is as a new process is after its imports.

  with Nursery() as nursery:
      pid = nursery.start([model, task, way], environment, stdin, stdout, stderr)  # file descriptors

End of the children is seen by the end of their output; their exit codes go to nobody.
"""
from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


class Nursery:
    def __init__(self, cores: set[int] | None = None, packages: str | None = None) -> None:
        """cores: the set of processors that its processes may run on; default: as this one. packages: a directory whose
        packages its processes import before those that are installed."""
        self._socket, far = socket.socketpair()
        # The one thread that the imports would start is OpenBLAS's in numpy, which torch does not use.
        environment = dict(os.environ, OPENBLAS_NUM_THREADS="1")
        if packages:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [packages, environment.get("PYTHONPATH")]))
        self._process = subprocess.Popen([sys.executable, __file__, str(far.fileno())], pass_fds=[far.fileno()],
                                         env=environment, stdin=subprocess.DEVNULL)
        if cores:
            os.sched_setaffinity(self._process.pid, cores)  # long before it has other threads
        far.close()

    def start(self, arguments: list[str], environment: dict[str, str], *files: int) -> int:
        """The process's id."""
        message = json.dumps([arguments, environment]).encode()
        socket.send_fds(self._socket, [len(message).to_bytes(4, "big")], list(files))
        self._socket.sendall(message)
        reply = self._socket.recv(16)
        if not reply:
            raise RuntimeError("the process that starts the others ended; its message stands above")
        return int(reply)

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.wait()


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = connection.recv(count - len(found))
        if not part:
            raise EOFError
        found += part
    return found


def _serve(connection: socket.socket) -> None:
    import measure  # torch and transformers with it

    if len(os.listdir("/proc/self/task")) != 1:
        raise SystemExit("importing torch and transformers started threads, which a fork would lose")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel takes their exit codes
    while True:
        length, files, _, _ = socket.recv_fds(connection, 4, 3)
        if not length:
            return
        arguments, environment = json.loads(_exactly(connection, int.from_bytes(length, "big")))
        child = os.fork()
        if child == 0:
            break
        for file in files:
            os.close(file)
        connection.sendall(str(child).encode())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.update(environment)
    measure.main(arguments)


if __name__ == "__main__":
    sys.path.insert(0, _HERE)
    _serve(socket.socket(fileno=int(sys.argv[1])))
