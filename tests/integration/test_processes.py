"""More than one process: warm starts, herds, forks, DDP; and a service that goes away."""
import json
import os
import resource
import signal
import textwrap
import time

import pytest

from daemons import daemon_pid, worker_pids

TRAIN = textwrap.dedent("""
    import json, sys, warnings
    import torch, kiln
    from torch._dynamo.utils import counters
    from models import make
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


def last_json(output):
    return json.loads(output.strip().splitlines()[-1])


def test_warm_start_compiles_nothing(place):
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


def test_evicted_program_is_compiled_again(place):
    first = last_json(place.run(SMALL)[0])
    assert first["compiles"] == 1
    place.stop()
    place.environment["KILN_STORE"] = place.store_dir + "-other"  # torch's cache knows the key, the store does not
    again = last_json(place.run(SMALL)[0])
    assert again["compiles"] == 1 and not again["fallbacks"]


def test_other_sizes_hit_in_a_new_process(place):
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


def test_herd(place):
    code = textwrap.dedent("""
        import json, os, time
        import torch, kiln
        x = torch.arange(12.0).view(3, 4)
        while not os.path.exists(os.environ["GO"]):
            time.sleep(0.01)
        f = torch.compile(lambda x: (x.sin() * 5).sum(-1).tanh().exp(), backend="kiln")
        torch.testing.assert_close(f(x), (x.sin() * 5).sum(-1).tanh().exp())
        print(json.dumps(kiln.stats()))
    """)
    go = os.path.join(place.root, "go")
    processes = [place.start(code, GO=go, TORCHINDUCTOR_CACHE_DIR=os.path.join(place.root, f"torch{i}"))
                 for i in range(8)]
    time.sleep(25)
    open(go, "w").close()
    results = []
    for process in processes:
        output, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors[-3000:]
        results.append(last_json(output))
    assert all(not result["fallbacks"] for result in results)
    # One flight: everybody else joined it or found its result.
    assert sum(result["compiles"] - result["joined"] for result in results) <= 1


def test_fork(place):
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


def test_ddp(place):
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


# ---- the service goes away

FAULTY = textwrap.dedent("""
    import json, os, warnings
    import torch, kiln
    def f(x):
        return (x.sin() * 3).sum(-1).exp()
    x = torch.randn(3, 4, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y = torch.compile(f, backend="kiln")(x)
        y.sum().backward()
    mine = x.grad
    x.grad = None
    f(x).sum().backward()
    torch.testing.assert_close(mine, x.grad)
    ours = [str(w.message) for w in caught if "kiln" in str(w.message)]
    print(json.dumps({"stats": kiln.stats(), "warnings": ours}))
""")


def fell_back_with_one_warning(output):
    result = last_json(output)
    assert sum(result["stats"]["fallbacks"].values()) == 2 and result["stats"]["graphs"] == 0
    assert len(result["warnings"]) == 1 and "runs without kiln" in result["warnings"][0]


def test_no_daemon_to_start(place):
    fell_back_with_one_warning(place.run(FAULTY, KILN_DAEMON="/nonexistent/kilnd")[0])


def test_nobody_at_the_address(place):
    fell_back_with_one_warning(
        place.run(FAULTY, KILN_ADDRESS=f"unix:{place.root}/nobody.sock", KILN_CONNECT_TIMEOUT="0.5")[0])


def test_daemon_too_slow(place):
    place.run(SMALL)
    os.kill(daemon_pid(place.runtime_dir), signal.SIGSTOP)
    try:
        fell_back_with_one_warning(
            place.run(FAULTY, KILN_COMPILE_TIMEOUT="2", KILN_CONNECT_TIMEOUT="1")[0])
    finally:
        os.kill(_listener(place), signal.SIGCONT)


def test_compiler_out_of_memory(place):
    place.run(SMALL)
    workers = worker_pids(_listener(place))
    assert workers
    for worker in workers:
        resource.prlimit(worker, resource.RLIMIT_AS, (1 << 20, 1 << 20))  # they get no more than they have
    result = last_json(place.run("""if True:
        import json, warnings
        import torch, kiln
        def f(x):
            for i in range(40):
                x = torch.softmax(x * (i + 2), -1).sin()
            return x
        warnings.simplefilter("ignore")
        x = torch.randn(3, 4)
        torch.testing.assert_close(torch.compile(f, backend="kiln")(x), f(x))
        print(json.dumps(kiln.stats()))
    """)[0])
    # One refusal: a second try would have met the worker that replaced the first, and no limit.
    (reason, count), = result["fallbacks"].items()
    assert count == 1 and "ran out of its memory" in reason and "workers.memory_bytes" in reason


def test_refusal_of_the_compiler_is_told_and_remembered(place):
    code = """if True:
        import json, warnings
        import torch, kiln
        library = torch.library.Library("kiln_test", "DEF")
        library.define("double(Tensor x) -> Tensor")
        library.impl("double", lambda x: x * 2, "CompositeExplicitAutograd")
        library.impl("double", lambda x: torch.empty_like(x), "Meta")
        warnings.simplefilter("ignore")
        x = torch.randn(3)
        torch.testing.assert_close(torch.compile(torch.ops.kiln_test.double, backend="kiln")(x), x * 2)
        print(json.dumps(kiln.stats()))
    """
    for _ in range(2):
        fallbacks = last_json(place.run(code)[0])["fallbacks"]
        assert fallbacks == {"unsupported: operators of namespace 'kiln_test'": 1}
    with open(os.path.join(place.runtime_dir, "kilnd.log")) as log:
        assert log.read().count("failed: UNIMPLEMENTED") == 1


def _listener(place):
    pid = daemon_pid(place.runtime_dir)
    assert pid is not None
    return pid


def test_daemon_killed_between_compiles(place):
    code = FAULTY.replace("print(json", textwrap.dedent("""
        import signal
        from daemons import stop_daemon
        assert stop_daemon(os.environ["KILN_RUNTIME_DIR"], signal.SIGKILL)
        g = torch.compile(lambda x: x.tanh() * 2, backend="kiln")
        torch.testing.assert_close(g(x), x.tanh() * 2)
        print(json""").strip())
    result = last_json(place.run(code)[0])
    assert result["stats"]["graphs"] >= 3 and not result["stats"]["fallbacks"]  # a new daemon was started


def test_daemon_killed_during_a_compile(place):
    pytest.importorskip("transformers")
    process = place.start(TRAIN)
    deadline = time.time() + 60
    pid = None
    while pid is None and time.time() < deadline:
        pid = daemon_pid(place.runtime_dir)
        time.sleep(0.02)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors[-3000:]
    assert last_json(output)["losses"][-1] < last_json(output)["losses"][0]


def test_store_not_writable(place):
    os.makedirs(place.store_dir, mode=0o500)
    with open(os.path.join(place.root, "file"), "w") as file:
        file.write("not a directory")
    result = last_json(place.run(FAULTY, KILN_STORE=os.path.join(place.root, "file", "store"))[0])
    assert result["stats"]["graphs"] + sum(result["stats"]["fallbacks"].values()) == 2


def test_error_mode_raises(place):
    process = place.start(FAULTY, KILN_DAEMON="/nonexistent/kilnd", KILN_FALLBACK="error")
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0 and "KILN_FALLBACK=error" in errors
