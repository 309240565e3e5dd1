"""Ranks of one job are a gang by themselves, another one after each restart, and served alike by several daemons; what
a rank is told that can't be told its gang's verdict."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import torch

from daemons import Place
from kiln import gang

Ranks: TypeAlias = list[dict[str, str]]  # what each was told, by what it asked

RANKS = 4
GANG_ID = "00112233445566778899aabbccddeeff"

# Two graphs, with sizes that differ between ranks; at the first start the job's last rank fails after them.
JOB = textwrap.dedent("""
    import json, os, sys
    import torch, kiln
    import torch.distributed as dist
    from kiln import gang, records
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    step = torch.compile(lambda x, w: torch.relu(x @ w).sum(-1), backend="kiln", dynamic=True)
    for rows in (8 + rank % 2, 64):
        x, w = torch.ones(rows, 16), torch.ones(16, 4)
        y = step(x, w)
        torch.testing.assert_close(y, torch.relu(x @ w).sum(-1))
    dist.all_reduce(y)
    stats = kiln.stats()
    assert not stats["fallbacks"], stats
    id, ranks = gang.current()
    variants = [[graph["request_key"], graph["variant_id"]] for graph in records.graphs_since(0)]
    start = os.environ["TORCHELASTIC_RESTART_COUNT"]
    with open(f"{sys.argv[1]}/{start}-{rank}.json", "w") as file:
        json.dump({"id": id.hex(), "ranks": ranks, "variants": variants}, file)
    dist.barrier()
    if start == "0" and rank == dist.get_world_size() - 1:
        sys.exit(1)
    dist.destroy_process_group()
""")

# What each rank is served by its daemon, whose workers do what a script says; in turn, so that one is first.
# Both daemons have a program for 190, another one each. The last daemon's plan of `fails` ends by its time limit.
SPLIT = textwrap.dedent("""
    import json, os, subprocess, sys
    import torch.distributed as dist
    from kiln import gang
    caller, folder, name, *sockets = sys.argv[1:]
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    start = os.environ["TORCHELASTIC_RESTART_COUNT"]
    id, size = gang.current()

    def in_turn(order, script, hint):
        told = ""
        for turn in order:
            if turn == rank:
                words = {"address": "unix:" + sockets[rank * len(sockets) // ranks], "script": script, "hint": hint,
                         "gang": id.hex(), "size": size}
                told = subprocess.run([caller, "ask", *(f"{word}={value}" for word, value in words.items())], text=True,
                                      check=True, stdout=subprocess.PIPE).stdout.strip()
            dist.barrier()
        return told

    forth, back = list(range(ranks)), list(reversed(range(ranks)))
    told = {"id": id.hex(), "both": in_turn(forth, f"name {name};around 50", 190),
            "fails": in_turn(back if start == "0" else forth, f"name {name} fails;around 50;slow_from 1000", 1000)}
    with open(f"{folder}/{name}-{ranks}-{start}-{rank}.json", "w") as file:
        json.dump(told, file)
    dist.barrier()
    if start == "0" and rank == ranks - 1 and os.environ["RESTARTS"] == "1":
        sys.exit(1)
    dist.destroy_process_group()
""")

# One small compile for each environment, each in a fork of its own.
ADDS = textwrap.dedent("""
    import json, os, sys, warnings
    import torch, kiln

    def add():
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                torch.compile(lambda x: x + 1, backend="kiln")(torch.ones(2))
                raised = ""
            except Exception as error:
                raised = f"{type(error).__name__}: {error}"
        return {"raised": raised, "said": [str(w.message) for w in said], "fallbacks": list(kiln.stats()["fallbacks"])}

    for environment in json.loads(os.environ["ENVIRONMENTS"]):
        sys.stdout.flush()
        if os.fork() == 0:
            os.environ.update(environment)
            print(json.dumps(add()), flush=True)
            os._exit(0)
        os.wait()
""")


def adds(place: Place, *environments: dict[str, str]) -> list[dict[str, Any]]:
    lines = place.run(ADDS, ENVIRONMENTS=json.dumps(environments))[0].strip().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("local, new", [("2", True), ("1", False)])
def test_a_store_that_outlives_a_restart_names_another_gang(monkeypatch: pytest.MonkeyPatch, local: str,
                                                            new: bool) -> None:
    """Of one node; agents of several count restarts apart."""
    distributed = torch.distributed
    store = distributed.HashStore()  # type: ignore[attr-defined]  # torch has it by another name
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(distributed.distributed_c10d, "_get_default_store", lambda: store)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    ids = []
    for restart in ("0", "0", "1", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restart)
        told, ranks = gang.current()
        assert ranks == 2 and len(told) == 16
        ids.append(told)
    assert ids[0] == ids[1] and ids[2] == ids[3] and (ids[0] != ids[2]) == new


def test_ranks_of_torchrun_are_one_gang_until_they_start_anew(place: Place, tmp_path: pathlib.Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", "--max-restarts=1",
         str(script), str(tmp_path)],
        # A store that outlives a start would have the gloo of the next find the addresses of the last.
        env={**os.environ, **place.environment, "KILN_GANG": "strict", "OMP_NUM_THREADS": "1",
             "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]
    starts = [[json.loads((tmp_path / f"{start}-{rank}.json").read_text()) for rank in range(RANKS)]
              for start in range(2)]
    ids = [{told["id"] for told in start} for start in starts]
    assert all(len(start) == 1 for start in ids) and ids[0] != ids[1]
    assert all(len(next(iter(start))) == 32 for start in ids)
    for start in starts:
        assert {told["ranks"] for told in start} == {RANKS}
        assert all(told["variants"] == start[0]["variants"] for told in start) and start[0]["variants"]


class SplitJob:
    """Two kilnd with scripted workers, that a tier joins later, and jobs whose ranks ask one each, half of them."""

    def __init__(self, place: Place, folder: pathlib.Path) -> None:
        root = pathlib.Path(__file__).resolve().parents[2]
        self.programs = pathlib.Path(os.environ.get("KILN_BUILD", root / "build")) / "bin"
        if not shutil.which("redis-server") or not (self.programs / "caller").exists():
            pytest.skip("no redis-server (deploy/install_deps.sh --dev), or kiln's C++ tests are not built")
        self.place, self.folder = place, folder
        self.sockets = [self._start("a", ""), self._start("b", "plan_seconds_max: 2")]

    def _start(self, name: str, limits: str) -> pathlib.Path:
        home = pathlib.Path(self.place.root) / name
        home.mkdir(mode=0o700)
        socket, config = home / "kilnd.sock", home / "kilnd.textproto"
        # One key, so that each trusts what the other makes; limits of a loaded machine.
        config.write_text(
            f'listen {{ tenants {{ name: "train" uids: {os.getuid()} }} }}\n'
            f'signing {{ key_file: "{self.place.root}/key.pem" }}\n'
            f'tier {{ lookup_ms_max: 10000 addresses: "unix:{self.place.root}/tier.sock" }}\n'
            f'workers {{ count: 1 binary: "{self.programs}/scripted_worker" {limits} }}\n')
        self._run(self.programs / "kilnd", "--config", config, "--socket", socket, "--store", home / "store",
                  "--log-file", home / "log")
        self._await(lambda: "serves" in (home / "log").read_text() if (home / "log").exists() else False)
        return socket

    def _run(self, *command: str | pathlib.Path) -> None:
        self.place.processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))

    def _await(self, condition: Callable[[], bool]) -> None:
        deadline = time.time() + 60
        while not condition():
            assert time.time() < deadline and all(process.poll() is None for process in self.place.processes)
            time.sleep(0.05)

    def prepare(self, daemon: int, script: str, hint: int) -> str:
        """The variant that the daemon has then."""
        for _ in range(5):  # a loaded machine may be slower than the last daemon's limit
            told = subprocess.run([self.programs / "caller", "ask", f"address=unix:{self.sockets[daemon]}",
                                   f"script={script}", f"hint={hint}"], text=True, check=True,
                                  stdout=subprocess.PIPE).stdout.split()
            if told[0] != "fallback":
                break
        return told[0]

    def kilnctl(self, daemon: int, *words: str) -> str:
        return subprocess.run([self.programs / "kilnctl", "--address", f"unix:{self.sockets[daemon]}", *words],
                              text=True, check=True, stdout=subprocess.PIPE).stdout

    def compiles(self) -> list[int]:
        return [int(json.loads(self.kilnctl(daemon, "--json", "stats")).get("compiles", 0)) for daemon in range(2)]

    def join(self) -> None:
        self._run("redis-server", "--port", "0", "--unixsocket", f"{self.place.root}/tier.sock", "--save", "",
                  "--appendonly", "no", "--dir", self.place.root)
        for daemon in range(2):
            self._await(lambda: "NOT CONNECTED" not in self.kilnctl(daemon, "status"))

    def run(self, name: str, ranks: int, restarts: int = 0, **environment: str) -> list[Ranks]:
        """What the ranks were told, by start."""
        script = self.folder / "split.py"
        script.write_text(SPLIT)
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
             f"--max-restarts={restarts}", str(script), str(self.programs / "caller"), str(self.folder), name,
             *map(str, self.sockets)],
            env={**os.environ, **self.place.environment, "OMP_NUM_THREADS": "1", "RESTARTS": str(restarts),
                 "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", **environment}, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr[-4000:]
        return [[json.loads((self.folder / f"{name}-{ranks}-{start}-{rank}.json").read_text()) for rank in range(ranks)]
                for start in range(restarts + 1)]


def variants(ranks: Ranks, graph: str) -> set[str]:
    """That they were served."""
    return {told[graph].split()[0] for told in ranks if told[graph].endswith((" hit", " compiled"))}


def fallbacks(ranks: Ranks, graph: str) -> list[str]:
    """What those were told who were served none."""
    return [told[graph] for told in ranks if not told[graph].endswith((" hit", " compiled"))]


def test_ranks_of_two_daemons_are_served_alike(place: Place, tmp_path: pathlib.Path) -> None:
    job = SplitJob(place, tmp_path)
    own = {name: [job.prepare(daemon, f"name {name};around 50", hint) for daemon, hint in enumerate((150, 230))]
           for name in ("gang", "alone")}
    job.join()
    # The control: without a gang equal hints are served both programs, and a hit is beside a fallback.
    (alone,) = job.run("alone", RANKS, KILN_GANG="off")
    assert variants(alone, "both") == set(own["alone"]) and len(own["alone"]) == len(set(own["alone"]))
    assert len(variants(alone, "fails")) == 1 and fallbacks(alone, "fails") == ["fallback"] * (RANKS // 2)
    assert {told["id"] for told in alone} == {""}

    first, second = job.run("gang", RANKS, restarts=1)
    for start in (first, second):
        assert variants(start, "both") == {own["gang"][0]} and not fallbacks(start, "both"), start
        assert len({told["id"] for told in start}) == 1 and start[0]["id"]
    assert first[0]["id"] != second[0]["id"]
    assert not variants(first, "fails") and fallbacks(first, "fails") == ["fallback"] * RANKS
    # A restart does not inherit the refusal.
    assert len(variants(second, "fails")) == 1 and not fallbacks(second, "fails")

    # Another world size hits what is there.
    before = job.compiles()
    (smaller,) = job.run("gang", RANKS // 2)
    for graph in ("both", "fails"):
        assert variants(smaller, graph) == variants(second, graph) and not fallbacks(smaller, graph)
        assert all(told[graph].endswith(" hit") for told in smaller), smaller
    assert job.compiles() == before


def test_what_a_rank_does_whom_nobody_answers(place: Place) -> None:
    nobody = {"KILN_ADDRESS": f"unix:{place.root}/nobody.sock", "KILN_CONNECT_TIMEOUT": "0.5"}
    member = {"KILN_GANG_ID": GANG_ID, "KILN_GANG_SIZE": "4"}
    told, strict, served, *alone = adds(
        place, {**nobody, **member}, {**nobody, **member, "KILN_GANG": "strict"}, {**member, "KILN_GANG": "strict"},
        {**nobody, "KILN_GANG": "strict"}, {**nobody, **member, "KILN_GANG": "off"},
        {**nobody, **member, "KILN_GANG_SIZE": "1"})
    assert not told["raised"] and told["fallbacks"] == ["without the gang: service unavailable"]
    assert any("runs without kiln" in text for text in told["said"])
    assert "GangDiverges" in strict["raised"] and "KILN_GANG=strict" in strict["raised"] and not strict["fallbacks"]
    # The controls: one who is answered, and who is in no gang.
    assert not served["raised"] and not served["fallbacks"] and not served["said"]
    for other in alone:
        assert not other["raised"] and other["fallbacks"] == ["service unavailable"]


@pytest.mark.parametrize("environment, word", [
    ({"KILN_GANG": "yes"}, "on, off, strict"),
    ({"KILN_GANG_ID": GANG_ID[:-1], "KILN_GANG_SIZE": "4"}, "KILN_GANG_ID"),
    ({"KILN_GANG_ID": "g" + GANG_ID[1:], "KILN_GANG_SIZE": "4"}, "hexadecimal"),
    ({"KILN_GANG_ID": GANG_ID}, "KILN_GANG_SIZE"),
    ({"KILN_GANG_ID": GANG_ID, "KILN_GANG_SIZE": "0"}, "KILN_GANG_SIZE"),
])
def test_what_is_set_wrongly_is_said(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], word: str) -> None:
    from kiln import gang

    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=word):
        gang.check()


def test_world_size_is_the_size_of_a_named_gang(monkeypatch: pytest.MonkeyPatch) -> None:
    from kiln import gang

    monkeypatch.setenv("KILN_GANG_ID", GANG_ID)
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert gang.current() == (bytes.fromhex(GANG_ID), 8)
    monkeypatch.setenv("KILN_GANG", "off")
    assert gang.current() == (b"", 0)
    monkeypatch.delenv("KILN_GANG")
    monkeypatch.delenv("KILN_GANG_ID")
    assert gang.current() == (b"", 0), "torch.distributed is not initialised"
