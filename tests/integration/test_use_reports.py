"""What processes tell kilnd of the programs that they call, and what becomes of it."""
import json
import os
import signal
import textwrap
from typing import Any

from daemons import Place, daemon_pid, kilnctl, start_daemon

PROGRAMS = textwrap.dedent("""
    import os, signal
    import torch, kiln
    from kiln import _C
    f = torch.compile(lambda x: (x.sin() * 3).exp(), backend="kiln")
    g = torch.compile(lambda x: (x.cos() * 5).exp(), backend="kiln")
    x = torch.arange(12.0)
""")


def uses(place: Place) -> dict[str, dict[str, Any]]:
    """{job: counts} as kilnctl tells them of the one tenant that there is."""
    rows = json.loads(kilnctl(place, "stats", "--json").stdout)["uses"]
    assert all(row["tenant"] == "default" and not row["several"] for row in rows), rows
    return {row["job"]: row for row in rows}


def test_a_process_reports_at_its_end_and_a_silent_daemon_keeps_it_not(place: Place) -> None:
    start_daemon(place)
    code = PROGRAMS + "for _ in range(5): f(x)\n"
    for processes in range(1, 21):  # noqa: B007 - a report has 50 ms, which a busy machine may not give it
        place.run(code, KILN_JOB="night")
        use = uses(place)["night"]
        assert int(use["executed"]) in (0, 5)
        if int(use["executed"]) == 5:
            break
    assert int(use["executed"]) == 5
    assert int(use["compiles"]) == 1 and int(use["hits"]) == processes - 1
    assert (use["seconds_saved"] > 0) == (processes > 1)
    # Who can't tell it leaves nonetheless.
    daemon = daemon_pid(place.runtime_dir)
    assert daemon
    try:
        place.run(code + f"os.kill({daemon}, signal.SIGSTOP)\n", KILN_JOB="day")
    finally:
        os.kill(daemon, signal.SIGCONT)
    assert int(uses(place)["day"]["hits"]) == 1 and uses(place)["day"]["seconds_saved"] > 0
    assert uses(place)["night"] == use


def test_calls_are_told_with_the_next_program_by_a_child_its_own_and_by_the_killed_no_more(place: Place) -> None:
    start_daemon(place)
    process = place.start(PROGRAMS + textwrap.dedent("""
        for _ in range(3): f(x)
        child = os.fork()
        if child == 0:
            f(x)
            _C.report_use(60.0)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        g(x)
        os.kill(os.getpid(), signal.SIGKILL)
    """), KILN_JOB="night")
    _, errors = process.communicate(timeout=240)
    assert process.returncode == -signal.SIGKILL, errors
    use = uses(place)["night"]
    assert int(use["executed"]) == 4 and int(use["compiles"]) == 2  # g's own call is lost
    place.run(PROGRAMS + "g(x)\n", KILN_JOB="after")
    assert int(uses(place)["after"]["hits"]) == 1
