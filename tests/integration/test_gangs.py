"""Ranks of one job are a gang by themselves, another one after each restart; what a rank is told that can't be told its
gang's verdict."""
import json
import os
import subprocess
import sys
import textwrap

import pytest

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


def adds(place, *environments):
    lines = place.run(ADDS, ENVIRONMENTS=json.dumps(environments))[0].strip().splitlines()
    return [json.loads(line) for line in lines]


def test_ranks_of_torchrun_are_one_gang_until_they_start_anew(place, tmp_path):
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


def test_what_a_rank_does_whom_nobody_answers(place):
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
def test_what_is_set_wrongly_is_said(monkeypatch, environment, word):
    from kiln import gang

    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=word):
        gang.check()


def test_world_size_is_the_size_of_a_named_gang(monkeypatch):
    from kiln import gang

    monkeypatch.setenv("KILN_GANG_ID", GANG_ID)
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert gang.current() == (bytes.fromhex(GANG_ID), 8)
    monkeypatch.setenv("KILN_GANG", "off")
    assert gang.current() == (b"", 0)
    monkeypatch.delenv("KILN_GANG")
    monkeypatch.delenv("KILN_GANG_ID")
    assert gang.current() == (b"", 0), "torch.distributed is not initialised"
