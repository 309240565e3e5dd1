"""PyTorch's operator database through kiln: a part drawn by a seed (all of it with --full), and the judge itself.

Controls: results spoilt on purpose, and processes that die and hang, have to be told as what they are.
"""
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeAlias

import pytest
import torch

from daemons import Place

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "campaign"))
pytest.importorskip("expecttest")  # torch's databases import it
import judge
import known
import opdb
import subjects
import trial
from verdicts import AS_AOT, BAD, ERROR, FALLBACK, NOT_CAPTURED, OK, WRONG

# ---- the judge ----


Database: TypeAlias = dict[str, subjects.Subject]


def results(*outputs: Any, inputs: Sequence[torch.Tensor] = ()) -> judge.Results:
    leaves = [(f"output {number}", value) for number, value in enumerate(outputs)]
    return judge.Results(leaves + [(f"input {number}", value) for number, value in enumerate(inputs)])


def kinds(mine: Any, own: Any, exact: Any = None, **options: Any) -> list[str]:
    mine, own, exact = (value if value is None or isinstance(value, judge.Results) else results(value)
                        for value in (mine, own, exact))
    return [difference.kind for difference in judge.differences(mine, own, exact, **options)]


FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]


def drawn(dtype: torch.dtype, seed: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return (torch.randn(4, 33, dtype=wide, generator=generator) * scale).to(dtype)


def moved(value: torch.Tensor, units: float) -> torch.Tensor:
    """With its largest element so many units in the last place away."""
    changed = value.clone()
    at = changed.abs().flatten().argmax()
    changed.view(-1)[at] += units * judge.unit_in_last_place(value.dtype, changed.abs().max().item())
    return changed


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("scale", [1.0, 1e-3, 100.0])
def test_three_units_are_wrong_and_one_is_right(dtype: torch.dtype, scale: float) -> None:
    for seed in range(10):
        own = drawn(dtype, seed, scale)
        exact = own.to(torch.complex128 if dtype.is_complex else torch.float64)
        assert kinds(own.clone(), own, exact) == []
        # Towards zero, so that a binade's end makes no unit larger.
        assert kinds(moved(own, -torch.sgn(own.flatten()[own.abs().argmax()]).item()), own, exact) == []
        assert kinds(moved(own, -3 * torch.sgn(own.flatten()[own.abs().argmax()]).item()), own, exact) == ["value"]


def test_twice_the_error_of_eager_is_right() -> None:
    own = drawn(torch.float32, 1)
    exact = own.double()
    exact[2, 3] += 1e-3
    mine = own.clone()
    mine[1, 1] += 1.9e-3
    assert kinds(mine, own, exact) == []
    mine[1, 1] += 0.2e-3
    assert kinds(mine, own, exact) == ["value"]


def test_errors_of_float64_are_measured_by_float32() -> None:
    own = drawn(torch.float64, 2)
    mine = own.clone()
    mine[0, 0] += 1e-14
    assert kinds(mine, own) == ["value"]
    near = results(own.float() * (1 + 1e-4))
    assert kinds(mine, own, estimate=near) == []
    allowed = 3 * judge.errors_of_eager(results(own), estimate=near)[0]
    for factor, found in ((0.99, []), (1.01, ["value"])):
        mine = own.clone()
        mine[0, 0] += factor * allowed
        assert kinds(mine, own, estimate=near) == found


def test_eager_may_be_exact_by_chance() -> None:
    own = drawn(torch.float32, 1)
    exact = results(own.double() + 1e-3)
    nearby = judge.errors_of_eager(results(own), exact)
    assert nearby == [pytest.approx(1e-3, rel=1e-3)]
    mine = own + 1.9e-3
    assert kinds(mine, own, own.double()) == ["value"]
    assert kinds(mine, own, own.double(), own_errors=nearby) == []
    assert kinds(own + 2.1e-3, own, own.double(), own_errors=nearby) == ["value"]


def test_nan_and_infinity_have_their_places() -> None:
    own = drawn(torch.float32, 3)
    own[0, 0], own[1, 1], own[2, 2] = float("nan"), float("inf"), float("-inf")
    assert kinds(own.clone(), own, own.double()) == []
    for place, value, kind in (((3, 3), "nan", "nan"), ((0, 0), "1", "nan"), ((1, 1), "-inf", "infinity"),
                               ((2, 2), "3e38", "infinity"), ((3, 3), "inf", "infinity")):
        mine = own.clone()
        mine[place] = float(value)
        assert kinds(mine, own, own.double()) == [kind]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_integers_are_exact(dtype: torch.dtype) -> None:
    own = (torch.arange(12) % 2).to(dtype)
    mine = own.clone()
    mine[5] = 0
    assert kinds(own.clone(), own) == []
    assert kinds(mine, own) == ["value"]


def test_dtype_shape_and_strides() -> None:
    own = torch.randn(3, 4)
    assert kinds(own.double(), own) == ["dtype"]
    assert kinds(own.reshape(4, 3), own) == ["shape"]
    assert kinds(own.t().contiguous().t(), own) == ["stride"]
    assert kinds(own.clone().requires_grad_(), own) == ["requires_grad"]
    assert kinds(results(own, own.clone()), results(own)) == ["structure"]
    assert kinds(results(2), results(3)) == ["value"]
    # Strides that no element tells apart.
    assert kinds(torch.randn(1, 4)[:0], torch.empty_strided((0, 4), (1, 7))) == []
    value = torch.randn(1, 4)
    assert kinds(value, value.clone().as_strided((1, 4), (9, 1))) == []


def test_shared_memory() -> None:
    base = torch.randn(3, 4)
    apart = results(base + 1, base + 1, inputs=[base])
    together = (base + 1).flatten()
    assert kinds(apart, results(base + 1, base + 1, inputs=[base])) == []
    assert kinds(results(together.view(3, 4), together.view(3, 4), inputs=[base]), apart) == ["alias"]
    assert kinds(results(base, base + 1, inputs=[base]), results(base.clone(), base + 1, inputs=[base])) == ["alias"]


def test_free_values_keep_their_layout() -> None:
    own = torch.randn(3, 4)
    assert kinds(own + 1, own, layout_only=True) == []
    assert kinds(own.double() + 1, own, layout_only=True) == ["dtype"]


# ---- trials: backends that spoil what aot_eager gives ----


def spoiling(spoil: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """A backend as aot_eager, but for its first result."""

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        run = torch._dynamo.lookup_backend("aot_eager")(module, inputs)

        def spoilt(*args: Any) -> Any:
            first, *others = run(*args)
            return (spoil(first), *others)

        return spoilt

    return backend


def raising(module: Any, inputs: Any) -> NoReturn:
    raise ZeroDivisionError("no")


def nothing_fell_back() -> None:
    return None


@pytest.fixture(scope="module")
def database() -> Database:
    return subjects.subjects()


def sum_of_few(x: torch.Tensor) -> torch.Tensor:
    """In an order that eager does not take."""
    return (x[0] + x[2]) + (x[1] + x[3])


def test_an_order_of_its_own_is_right(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    real = trial.lookup
    monkeypatch.setattr(trial, "lookup", lambda backend: (lambda module, inputs: lambda x: (sum_of_few(x),))
                        if backend == "planted" else real(backend))
    found = trial.Trial(database["sum"], "float32", False, "planted", nothing_fell_back)
    generator = torch.Generator().manual_seed(5)
    for _ in range(15):
        x = torch.randn(4, 1, generator=generator)
        assert found.verdict(subjects.Case(lambda x: ((x[0] + x[1]) + x[2]) + x[3], (x,), {})).verdict == OK


FOUR = (0.3635819, -0.4891775, 0.1365995, -0.0106411)


def of_numbers(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    a, b, c, d = (torch.tensor([number], dtype=dtype) for number in FOUR)
    return ((a + b) + c) + d


@pytest.mark.parametrize("change, verdict", [
    (lambda: (torch.tensor([(FOUR[0] + FOUR[2]) + (FOUR[1] + FOUR[3])], dtype=torch.float64),), OK),
    (lambda: (torch.tensor([sum(FOUR) + 1e-15], dtype=torch.float64),), WRONG)])
def test_an_order_of_its_own_is_right_without_inputs(database: Database, monkeypatch: pytest.MonkeyPatch,
                                                     change: Callable[..., Any], verdict: str) -> None:
    real = trial.lookup
    monkeypatch.setattr(trial, "lookup", lambda backend: (lambda module, inputs: change)
                        if backend == "planted" else real(backend))
    found = trial.Trial(database["sum"], "float64", False, "planted", nothing_fell_back)
    assert found.verdict(subjects.Case(of_numbers, (), {"dtype": torch.float64})).verdict == verdict


def test_a_dtype_that_is_named_has_errors_too() -> None:
    x = torch.randint(-9, 9, (5, 10, 5), dtype=torch.int32)
    case = subjects.Case(torch.nn.functional.softmin, (x, 2), {"dtype": torch.float64})
    exact, estimate = trial._in_other_dtypes(case)
    own = trial.run(case.copied()).results
    assert own
    mine = results(moved(own.leaves[0][1], -3), inputs=[x])
    assert judge.differences(mine, own, None, None) and not judge.differences(mine, own, exact, estimate)


CALLS: dict[str, Callable[..., Any]] = {
    "exp": torch.exp, "nonzero": torch.nonzero, "nn.functional.dropout": torch.nn.functional.dropout}


@pytest.mark.parametrize("name, spoil, verdict", [
    ("exp", lambda value: value, OK),
    ("exp", lambda value: value * (1 + 3e-6), WRONG),
    ("exp", lambda value: value * float("nan"), WRONG),
    ("exp", lambda value: value.double(), WRONG),
    ("exp", lambda value: value.t().contiguous().t(), WRONG),
    ("nn.functional.dropout", lambda value: value * 2, OK),
    ("nonzero", lambda value: value, NOT_CAPTURED),
    ("exp", None, ERROR),
])
def test_verdicts(database: Database, monkeypatch: pytest.MonkeyPatch, name: str,
                  spoil: Callable[[torch.Tensor], torch.Tensor] | None, verdict: str) -> None:
    real = trial.lookup
    planted = raising if spoil is None else spoiling(spoil)
    monkeypatch.setattr(trial, "lookup", lambda backend: planted if backend == "planted" else real(backend))
    found = trial.Trial(database[name], "float32", False, "planted", nothing_fell_back)
    assert found.verdict(subjects.Case(CALLS[name], (torch.randn(3, 4),), {})).verdict == verdict


def test_a_fallback_is_told(database: Database) -> None:
    subject = database["exp"]
    found = trial.Trial(subject, "float32", True, "aot_eager", lambda: "unsupported: exp")
    _, case = subject.cases("float32", 1, 0)[0]
    assert found.verdict(case) == trial.Verdict(FALLBACK, "unsupported: exp")


def test_error_inputs_raise_as_in_eager(database: Database) -> None:
    subject = database["gather"]
    found = trial.Trial(subject, "errors", False, "aot_eager", nothing_fell_back)
    cases = subject.cases("errors", 6, 0)
    assert cases and all(found.verdict(case).verdict in (OK, AS_AOT) for _, case in cases)


@pytest.mark.parametrize("raised, verdict", [(IndexError, OK), (ValueError, ERROR), (None, ERROR)])
def test_exceptions_of_another_type_are_told(database: Database, monkeypatch: pytest.MonkeyPatch,
                                             raised: type[Exception] | None, verdict: str) -> None:
    def planted(module: Any, inputs: Any) -> Callable[..., Any]:
        def run(*args: Any) -> tuple[torch.Tensor, ...]:
            if raised is not None:
                raise raised("7")
            return (torch.zeros(1),)

        return run

    real = trial.lookup
    monkeypatch.setattr(trial, "lookup", lambda backend: planted if backend == "planted" else real(backend))
    found = trial.Trial(database["gather"], "errors", False, "planted", nothing_fell_back)
    case = subjects.Case(lambda x, i: torch.nn.functional.embedding(i, x), (torch.randn(2, 2), torch.tensor([7])), {})
    assert found.verdict(case).verdict == verdict  # eager raises IndexError


def test_samples_are_the_seeds(database: Database) -> None:
    shown = [[(number, str(case)) for number, case in database["add"].cases("float32", 6, seed)] for seed in (0, 0, 1)]
    assert shown[0] == shown[1] != shown[2]


# ---- processes ----


_SCRIPTED = """
import json, os, sys, time
print(json.dumps({"units": [["good", "float32"], ["bad", "float32"], ["slow", "float32"],
                            ["busy", "float32"], ["starved", "float32"]]}), flush=True)
for line in sys.stdin:
    name, dtype, way, first = json.loads(line)
    for number in range(first, 3):
        print(json.dumps({"begin": number, "sample": "x"}), flush=True)
        if number == 1 and name == "bad":
            os.abort()
        if number == 1 and name == "slow":
            time.sleep(100)
        end = time.process_time() + 100
        while number == 1 and name == "busy" and time.process_time() < end:
            pass
        if number == 1 and name == "starved":
            time.sleep(3)
        print(json.dumps({"end": number, "verdict": "ok", "detail": "", "seconds": 0.0}), flush=True)
    print(json.dumps({"done": {}}), flush=True)
"""


@pytest.fixture
def scripted(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Campaigns whose processes are the script above."""
    script = tmp_path / "scripted.py"
    script.write_text(_SCRIPTED)
    monkeypatch.setattr(opdb, "command", lambda options: [sys.executable, str(script)])
    monkeypatch.setattr(opdb.Campaign, "subject", lambda self: {"kiln": "scripted"})
    return tmp_path / "opdb.jsonl"


def verdicts(path: pathlib.Path) -> dict[str, list[str]]:
    _, *records = map(json.loads, path.read_text().splitlines())
    return {record["operator"]: [sample["verdict"] for sample in record["samples"]] for record in records}


def test_a_crash_and_a_hang_cost_their_sample(scripted: pathlib.Path) -> None:
    arguments = ["--json", str(scripted), "--ways", "static", "--sample-seconds", "2", "--processes", "1"]
    assert opdb.main(arguments) == 1
    hang = ["ok", "hang", "ok"]
    assert verdicts(scripted) == {"good": ["ok"] * 3, "bad": ["ok", "crash", "ok"], "slow": hang, "busy": hang,
                                  "starved": ["ok"] * 3}


def test_a_process_that_does_not_start_costs_one_sample(scripted: pathlib.Path,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    script = scripted.parent / "scripted.py"
    script.write_text(script.read_text().replace('name == "bad"', 'open("started", "w")')
                      .replace("import json", "import os\nif os.path.exists('started'): os.abort()\nimport json"))
    monkeypatch.chdir(scripted.parent)
    assert opdb.main(["--json", str(scripted), "--ways", "static", "--ops", "good", "--processes", "1"]) == 1
    assert verdicts(scripted) == {"good": ["ok", "crash", "crash"]}


def test_a_crash_tells_where(scripted: pathlib.Path) -> None:
    script = scripted.parent / "scripted.py"
    script.write_text(script.read_text().replace("os.abort()",
                                                 "import faulthandler; faulthandler.enable(); os.abort()"))
    assert opdb.main(["--json", str(scripted), "--ways", "static", "--ops", "bad", "--processes", "1"]) == 1
    _, record = map(json.loads, scripted.read_text().splitlines())
    assert "SIGABRT Fatal Python error: Aborted scripted.py 10 in <module>" in record["samples"][1]["detail"]


def test_what_the_file_has_is_not_run_again(scripted: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--json", str(scripted), "--ways", "static", "--processes", "1"]
    assert opdb.main([*arguments, "--ops", "good"]) == 0
    before = scripted.read_text()
    assert opdb.main([*arguments, "--ops", "good", "--resume"]) == 0
    assert scripted.read_text() == before
    scripted.write_text(json.dumps({"kiln": "another"}) + "\n")
    assert opdb.main([*arguments, "--resume"]) == 2
    assert "of other options or of another kiln" in capsys.readouterr().err


# ---- how nodes are run ----


_COUNTED = """
import json, sys, warnings
sys.path.insert(0, {campaign!r})
from nodes import NodeCounts
counted = NodeCounts()
import torch
warnings.simplefilter("ignore")
torch.compile(lambda x: (x @ x).relu().sort().values, backend="kiln")(torch.randn(4, 4))
print(json.dumps(counted.take()))
"""


def test_nodes_are_counted_as_they_run(place: Place) -> None:
    code = _COUNTED.format(campaign=os.path.dirname(os.path.abspath(opdb.__file__)))
    output, _ = place.run(code)
    counts = json.loads(output)
    assert counts["aten.mm.default"] == [0, 1, 0]
    assert counts["aten.relu.default"] == [1, 0, 0]
    assert [numbers for target, numbers in counts.items() if "sort" in target] == [[0, 0, 1]]
    output, _ = place.run(code, KILN_ADDRESS=f"unix:{place.root}/nobody", KILN_CONNECT_TIMEOUT="1")
    assert all(numbers == [0, 0, 1] for numbers in json.loads(output).values())


# ---- the campaign ----


def test_the_database_agrees_with_eager(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> None:
    arguments = ["--json", str(tmp_path / "opdb.jsonl")]
    if not request.config.getoption("--full"):
        arguments += ["--part", "0.02", "--samples", "2", "--limit-seconds", "90"]
    start = time.time()
    campaign = opdb.Campaign(opdb.parse(arguments))
    campaign.run()
    print(opdb.report(campaign.records), f"\n{time.time() - start:.0f} s", sep="")
    bad = [opdb.line(record, sample) for record in campaign.records for sample in record["samples"]
           if sample["verdict"] in BAD
           and known.cause(record["operator"], sample["verdict"], sample["detail"]) is None]
    assert campaign.records and not bad, "\n".join(bad)
