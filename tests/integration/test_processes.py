"""More than one process: warm starts, herds, forks, DDP."""
import glob
import json
import os
import shutil
import signal
import textwrap
import time
from collections.abc import Callable
from typing import Any

import pytest

from daemons import Place, kilnctl, start_daemon, worker_pids

TRAIN = textwrap.dedent("""
    import json, sys, warnings
    import torch, kiln
    from torch._dynamo.utils import counters
    from promised_models import make
    torch.manual_seed(0)
    model, inputs = make(sys.argv[1] if len(sys.argv) > 1 else "gpt2")
    step = torch.compile(model.train(), backend="kiln")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = step(**inputs).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(json.dumps({"losses": losses, "stats": kiln.stats(), "aot": dict(counters["aot_autograd"])}))
""")

SMALL = textwrap.dedent("""
    import json
    import torch, kiln
    f = torch.compile(lambda x: (x.sin() * 3).sum(-1).exp(), backend="kiln")
    x = torch.arange(12.0).view(3, 4)
    y = f(x)
    torch.testing.assert_close(y, (x.sin() * 3).sum(-1).exp())
    print(json.dumps(kiln.stats()))
""")


def last_json(output: str) -> Any:
    return json.loads(output.strip().splitlines()[-1])


def test_warm_start_compiles_nothing(place: Place) -> None:
    pytest.importorskip("transformers")
    cold = last_json(place.run(TRAIN)[0])
    assert cold["stats"]["compiles"] == cold["stats"]["graphs"] > 0 and not cold["stats"]["fallbacks"]
    warm = last_json(place.run(TRAIN)[0])
    assert warm["losses"] == cold["losses"]
    assert warm["stats"]["compiles"] == 0 and warm["stats"]["uploaded_bytes"] == 0
    assert warm["stats"]["hits"] == cold["stats"]["graphs"]
    # AOTAutograd did not trace.
    assert warm["aot"].get("autograd_cache_hit", 0) > 0 and not warm["aot"].get("autograd_cache_miss")
    assert warm["stats"]["autograd_cache_loads"] == warm["stats"]["graphs"]


def test_evicted_program_is_compiled_again(place: Place) -> None:
    first = last_json(place.run(SMALL)[0])
    assert first["compiles"] == 1
    place.stop()
    place.environment["KILN_STORE"] = place.store_dir + "-other"  # torch's cache knows the key, the store does not
    again = last_json(place.run(SMALL)[0])
    assert again["compiles"] == 1 and not again["fallbacks"]


def test_other_sizes_hit_in_a_new_process(place: Place) -> None:
    code = textwrap.dedent("""
        import json, os
        import torch, kiln
        f = torch.compile(lambda x: (x * 2).softmax(-1), backend="kiln", dynamic=True)
        x = torch.randn(int(os.environ["ROWS"]), 6)
        torch.testing.assert_close(f(x), (x * 2).softmax(-1))
        print(json.dumps(kiln.stats()))
    """)
    assert last_json(place.run(code, ROWS="4")[0])["compiles"] == 1
    other = last_json(place.run(code, ROWS="50")[0])
    assert other["compiles"] == 0 and other["hits"] == 1


def test_herd(place: Place) -> None:
    """Eight processes ask for the same graph while it is being compiled, and then for another one."""
    herd = 8
    code = textwrap.dedent("""
        import json, os, time
        import torch, kiln
        def barrier(name):
            open(os.path.join(os.environ["MEET"], f"{name}-{os.getpid()}"), "w").close()
            while not os.path.exists(os.path.join(os.environ["MEET"], f"go-{name}")):
                time.sleep(0.01)
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
        x = torch.randn(3, 4)
        with torch.no_grad():
            barrier("first")
            torch.testing.assert_close(torch.compile(model, backend="kiln")(x), model(x))
            barrier("second")
            torch.testing.assert_close(torch.compile(model[:2], backend="kiln")(x), model[:2](x))
        print(json.dumps(kiln.stats()))
    """)
    daemon = start_daemon(place)
    before = json.loads(kilnctl(place, "stats", "--json").stdout)
    workers = worker_pids(daemon)
    processes = [place.start(code, MEET=place.root, TORCHINDUCTOR_CACHE_DIR=os.path.join(place.root, f"torch{i}"),
                             OMP_NUM_THREADS="1") for i in range(herd)]

    def wait_until(condition: Callable[[], bool]) -> None:
        deadline = time.time() + 120
        while not condition():
            assert time.time() < deadline and not any(process.poll() for process in processes)
            time.sleep(0.1)

    for phase in ("first", "second"):
        wait_until(lambda: len(glob.glob(os.path.join(place.root, f"{phase}-*"))) == herd)
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)  # a compile that lasts until all have asked
        open(os.path.join(place.root, f"go-{phase}"), "w").close()
        wait_until(lambda: [job["waiters"] for job in json.loads(kilnctl(place, "jobs", "--json").stdout)["jobs"]]
                   == [herd])
        for worker in workers:
            os.kill(worker, signal.SIGCONT)
    results = []
    for process in processes:
        output, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors[-3000:]
        results.append(last_json(output))
    assert all(result["graphs"] == 2 and not result["fallbacks"] for result in results)
    stats = json.loads(kilnctl(place, "stats", "--json").stdout)
    assert stats["compiles"] - before["compiles"] == 2  # the graphs of one process
    assert stats["joined"] - before["joined"] == 2 * (herd - 1)
    assert sum(result["joined"] for result in results) == 2 * (herd - 1)


def test_fork(place: Place) -> None:
    code = textwrap.dedent("""
        import json, os, sys
        import torch, kiln
        from torch.utils.data import DataLoader, TensorDataset
        f = torch.compile(lambda x: x.sin() + 1, backend="kiln")
        f(torch.randn(4))
        data = TensorDataset(torch.arange(32.0))
        for (batch,) in DataLoader(data, batch_size=8, num_workers=2):
            torch.testing.assert_close(f(batch), batch.sin() + 1)
        g = torch.compile(lambda x: x.cos() * 2, backend="kiln")
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)
            y = g(torch.ones(5))
            ok = torch.allclose(y, torch.ones(5).cos() * 2) and not kiln.stats()["fallbacks"]
            os._exit(0 if ok else 3)
        assert os.waitpid(child, 0)[1] == 0
        torch.testing.assert_close(g(torch.ones(5)), torch.ones(5).cos() * 2)
        names = [open(f"/proc/self/task/{t}/comm").read().strip() for t in os.listdir("/proc/self/task")]
        assert not [n for n in names if "grpc" in n or "resolver" in n or "event_engine" in n], names
        print(json.dumps(kiln.stats()))
    """)
    result = last_json(place.run(code)[0])
    assert not result["fallbacks"]


def test_workers_of_a_dataloader_compile_while_their_parent_does(place: Place) -> None:
    code = textwrap.dedent("""
        import json
        import torch, kiln
        from torch.utils.data import DataLoader, Dataset

        class Compiling(Dataset):
            mine = None
            def __len__(self):
                return 8
            def __getitem__(self, index):
                if self.mine is None:  # in each worker anew
                    self.mine = torch.compile(lambda x: torch.softmax(x * 3, -1) + 1, backend="kiln")
                x = torch.arange(12.0).reshape(3, 4) + index
                y, stats = self.mine(x), kiln.stats()
                return x, y, stats["compiles"] + stats["hits"], stats["fallbacks"]

        def parent(i):
            x = torch.randn(5, 7 + i)
            f = torch.compile(lambda x: (x * 3).cos() - x, backend="kiln", dynamic=False)
            torch.testing.assert_close(f(x), (x * 3).cos() - x)

        parent(1)
        # Forked here: Dynamo's lock would not survive a fork within a compile, whatever the backend.
        batches = iter(DataLoader(Compiling(), batch_size=None, num_workers=2, multiprocessing_context="fork"))
        for i in range(2, 6):
            parent(i)
        seen = 0
        for x, y, compiled, fallbacks in batches:
            torch.testing.assert_close(y, torch.softmax(x * 3, -1) + 1)
            assert compiled > 0 and not fallbacks, fallbacks
            seen += 1
        parent(6)
        assert seen == 8
        print(json.dumps(kiln.stats()))
    """)
    result = last_json(place.run(code)[0])
    assert result["compiles"] == 6 and not result["fallbacks"]


def test_ddp(place: Place) -> None:
    code = textwrap.dedent("""
        import os, sys
        import torch, kiln
        import torch.distributed as dist
        import torch.multiprocessing as mp
        from torch.nn.parallel import DistributedDataParallel

        def worker(rank, address):
            dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
            step = torch.compile(DistributedDataParallel(model), backend="kiln")
            torch.manual_seed(rank)
            x = torch.randn(4, 6)
            for _ in range(2):
                model.zero_grad()
                step(x).pow(2).sum().backward()
            torch.manual_seed(0)
            own = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
            total = 0
            for other in range(2):
                torch.manual_seed(other)
                total = total + own(torch.randn(4, 6)).pow(2).sum()
            (total / 2).backward()
            for mine, expected in zip(model.parameters(), own.parameters()):
                torch.testing.assert_close(mine.grad, expected.grad, rtol=1e-4, atol=1e-5)
            assert not kiln.stats()["fallbacks"], kiln.stats()
            dist.destroy_process_group()

        address = "file://" + os.environ["RENDEZVOUS"]
        children = []
        for rank in range(2):
            pid = os.fork()
            if pid == 0:
                try:
                    worker(rank, address)
                except BaseException:
                    import traceback
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            children.append(pid)
        assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0]
    """)
    place.run(code, RENDEZVOUS=os.path.join(place.root, "rendezvous"), OMP_NUM_THREADS="1")


STEP = textwrap.dedent("""
    import json, os, threading
    import torch, kiln
    from torch._dynamo.utils import counters
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
    x = torch.randn(6, 4)
    loss = torch.compile(model, backend="kiln")(x).pow(2).sum()
    before = kiln.stats()
    errors = []
    def backward():
        try:
            loss.backward()
        except BaseException as error:
            errors.append(repr(error))
    if os.environ.get("THREAD"):
        thread = threading.Thread(target=backward)
        thread.start()
        thread.join()
    else:
        backward()
    assert not errors, errors
    after = kiln.stats()
    assert all(before[name] == after[name] for name in ("graphs", "compiles", "hits"))  # all was there before
    assert after["calls"] == before["calls"] + 1
    got = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model(x).pow(2).sum().backward()
    for ours, parameter in zip(got, model.parameters()):
        torch.testing.assert_close(ours, parameter.grad)
    print(json.dumps({"stats": after, "aot": dict(counters["aot_autograd"])}))
""")


def assert_compiled(result: dict[str, Any]) -> None:
    stats = result["stats"]
    assert stats["compiles"] == stats["graphs"] == 2 and not stats["fallbacks"] and not stats["hits"]
    assert result["aot"]["autograd_cache_saved"] == 1


def assert_taken(result: dict[str, Any]) -> None:
    stats = result["stats"]
    assert stats["hits"] == stats["graphs"] == 2 and not stats["fallbacks"] and not stats["compiles"]
    assert result["aot"]["autograd_cache_hit"] == 1 and not result["aot"].get("autograd_cache_miss")


def other_build(place: Place) -> str:
    """A kilnd of another build: the same programs with other build ids."""
    from kiln.environment import daemon_binary

    package = os.path.dirname(os.path.dirname(os.path.realpath(daemon_binary())))
    copied = os.path.join(place.root, "other")
    os.makedirs(copied)
    shutil.copytree(os.path.join(package, "bin"), os.path.join(copied, "bin"))
    os.symlink(os.path.join(package, "lib"), os.path.join(copied, "lib"))
    for name in ("kilnd", "kiln-worker"):
        with open(os.path.join(copied, "bin", name), "r+b") as file:
            at = file.read().index(b"\x14\0\0\0\3\0\0\0GNU\0") + 12  # the note: 20 bytes of kind 3 by GNU
            file.seek(at)
            file.write(os.urandom(20))
    return os.path.join(copied, "bin", "kilnd")


def test_upgraded_daemon(place: Place) -> None:
    """A daemon of another build, with the store and torch's cache of the first, takes nothing of the first one's."""
    assert_compiled(last_json(place.run(STEP)[0]))
    place.stop()
    assert_taken(last_json(place.run(STEP)[0]))  # the control: the same build, started again
    place.stop()
    upgraded = other_build(place)
    assert_compiled(last_json(place.run(STEP, KILN_DAEMON=upgraded)[0]))
    assert_taken(last_json(place.run(STEP, KILN_DAEMON=upgraded)[0]))


def test_backward_on_another_thread(place: Place) -> None:
    assert_compiled(last_json(place.run(STEP, THREAD="1")[0]))
    assert_taken(last_json(place.run(STEP, THREAD="1")[0]))
