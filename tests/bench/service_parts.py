"""What the rows of service.py share: servers as processes, the load on them, and numbers with their spread."""
import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LOOKUP, FETCH, COMPILE = (f"/kiln.v1.Compiler/{name}" for name in ("Lookup", "FetchObjects", "Compile"))
WAITING_CONNECTIONS = 50
STORE_CONNECTIONS = 8
KILND_CONFIG = """
workers {{ count: {workers} binary: "{worker}" plan_seconds_max: 3600 }}
measuring {{ off: true }}
"""
LOAD_IDENTITY = "spiffe://example.org/load"
TLS_CONFIG = """
listen {{ tcp: "127.0.0.1:0"
  tls {{ certificate: "{certificates}/server.crt" key: "{certificates}/server.key" authority: "{certificates}/ca.crt" }}
  tenants {{ name: "default" identities: "{identity}" }} }}
"""


class Failed(Exception):
    """A program of the benchmark failed; the message is its own."""


class Server:
    """A process that serves a unix socket, or by TLS the address that it prints, and ends with its standard input or by
    a signal."""

    def __init__(self, name: str, command: list[str], socket: str, log: str, tls: str | None = None) -> None:
        self.name, self.socket, self.tls = name, socket, tls
        self._log = open(log, "a+")  # noqa: SIM115 - closed by stop
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=self._log, stderr=self._log)
        deadline = time.monotonic() + 30
        while not self._serves(log):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                self._log.seek(0)
                raise Failed(f"{name} does not start: {self._log.read().strip()}")
            time.sleep(0.02)

    def _serves(self, log: str) -> bool:
        if not self.tls:
            return os.path.exists(self.socket)
        with open(log) as file:
            found = re.search(r"\bserves (\S+:\d+)", file.read())
        self.socket = found[1] if found else self.socket
        return found is not None

    def where(self) -> list[str]:
        """The load's arguments."""
        return ["--socket", self.socket] + (["--tls", self.tls] if self.tls else [])

    def stop(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.terminate()
        self._process.wait()

    def processor_seconds(self) -> float:
        with open(f"/proc/{self._process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))

    def status(self) -> dict[str, int]:
        """Threads, and bytes of memory."""
        with open(f"/proc/{self._process.pid}/status") as file:
            fields = dict(line.split(":", 1) for line in file)
        return {"threads": int(fields["Threads"]), "bytes": int(fields["VmRSS"].split()[0]) << 10}


class Bench:
    def __init__(self, options: argparse.Namespace, directory: str) -> None:
        self.options, self.directory = options, directory
        self.programs = os.path.join(options.build, "bin")
        self.replies: dict[str, Any] = {}
        self._count = 0

    def program(self, name: str) -> str:
        path = os.path.join(self.programs, name)
        if not os.access(path, os.X_OK):
            raise Failed(f"no {path}: build first, or name the build by --build")
        return path

    def place(self, name: str) -> str:
        self._count += 1
        return os.path.join(self.directory, f"{name}{self._count}")

    @contextlib.contextmanager
    def running(self, name: str, make: Callable[[str], Server]) -> Iterator[Server]:
        server = make(name)
        try:
            yield server
        finally:
            server.stop()

    def certificates(self) -> str:
        """The directory of an authority's, a server's and the load's."""
        place = os.path.join(self.directory, "certificates")
        if not os.path.exists(place):
            run([os.path.join(ROOT, "deploy", "make_dev_certs.sh"), place, f"load={LOAD_IDENTITY}"])
        return place

    def bare(self, form: str, reply_bytes: int, messages: int = 1,
             tls: str | None = None) -> contextlib.AbstractContextManager[Server]:
        """`tls`: the certificates' directory."""
        socket = self.place("bare")
        command = [self.program("service_bare"), *(["--tls", tls] if tls else ["--socket", socket]), "--form", form,
                   "--reply-bytes", str(reply_bytes), "--messages", str(messages)]
        return self.running(form, lambda name: Server(name, command, socket, socket + ".log", tls))

    def kilnd(self, store: str | None = None, settings: str = "", worker: str = "scripted_worker", workers: int = 2,
              open_to_all: bool = False, tls: str | None = None) -> contextlib.AbstractContextManager[Server]:
        """`open_to_all`: to users who may be its tenants. `tls`: the certificates' directory."""
        place = self.place("kilnd")
        os.mkdir(place, 0o700)
        if open_to_all:
            os.chmod(place, 0o755)
        config = os.path.join(place, "config.textproto")
        with open(config, "w") as file:
            file.write(KILND_CONFIG.format(worker=self.program(worker), workers=workers))
            file.write(self.options.config + settings)
            if tls:
                file.write(TLS_CONFIG.format(certificates=tls, identity=LOAD_IDENTITY))
        socket = os.path.join(place, "kilnd.sock")
        command = [self.options.kilnd or self.program("kilnd"), "--config", config, "--store",
                   store or os.path.join(place, "store"), *([] if tls else ["--socket", socket])]
        return self.running("kilnd", lambda name: Server(name, command, socket, socket + ".log", tls))

    def prepare(self, server: Server) -> None:
        command = [self.program("service_requests"), *server.where(), "--directory", self.directory]
        self.replies = json.loads(run(command))

    def lookups(self, server: Server, found: dict[str, Any], name: str, connections: int = STORE_CONNECTIONS,
                calls: int = 0) -> dict[str, Any]:
        """Those of a list of a filled store, in turn."""
        command = [self.program("service_load"), "calls", *server.where(), "--method", LOOKUP,
                   "--request-list", os.path.join(found["place"], name), "--connections", str(connections), "--seconds",
                   str(60 if calls else self.options.seconds), "--warm-seconds", "0" if calls else "0.3", "--calls",
                   str(calls), "--reply-bytes", str(found["reply"])]
        result: dict[str, Any] = json.loads(run(command))
        return result

    def load(self, server: Server, method: str, request: str, connections: int, reply_bytes: int,
             stream: bool = False) -> dict[str, Any]:
        command = [self.program("service_load"), "calls", *server.where(), "--method", method, "--request",
                   os.path.join(self.directory, request), "--connections", str(connections), "--outstanding",
                   str(self.options.outstanding), "--threads", str(self.options.threads), "--seconds",
                   str(self.options.seconds), "--reply-bytes", str(reply_bytes)] + ["--stream"] * stream
        before = server.processor_seconds()
        result: dict[str, Any] = json.loads(run(command))
        # The warm part as well, by its share of the time.
        share = self.options.seconds / (self.options.seconds + 0.3)
        result["processor"] = (server.processor_seconds() - before) * share / result["calls"] * 1e6
        return result

    @contextlib.contextmanager
    def waiting(self, server: Server, clients: int) -> Iterator[None]:
        command = [self.program("service_load"), "wait", *server.where(), "--method", COMPILE, "--request",
                   os.path.join(self.directory, "wait.header"), os.path.join(self.directory, "wait.graph"),
                   "--connections", str(WAITING_CONNECTIONS), "--outstanding", str(clients // WAITING_CONNECTIONS)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as load:
            assert load.stdin and load.stdout
            if load.stdout.readline().strip() != "waiting":
                raise Failed(f"{server.name}: not all of {clients} clients wait")
            yield
            load.stdin.close()


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(done.stderr.strip() or f"{command[0]} ended with {done.returncode}")
    return done.stdout


def spread(values: list[float]) -> dict[str, float]:
    """To four digits, which is more than the machine is steady for."""
    kinds = {"median": statistics.median(values), "least": min(values), "largest": max(values)}
    return {kind: float(f"{value:.4g}") for kind, value in kinds.items()}
