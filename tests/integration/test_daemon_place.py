"""Where the embedded daemon serves, and what a machine that is too tight for it says."""
import json
import os
import textwrap
from typing import Any

import pytest

from daemons import Place, stop_daemon

CALL = textwrap.dedent("""
    import json, time, warnings
    import torch, kiln
    start = time.time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for f in (lambda x: x.sin() + 1, lambda x: x.cos() + 2):
            torch.testing.assert_close(torch.compile(f, backend="kiln")(torch.ones(3)), f(torch.ones(3)))
    print(json.dumps({"stats": kiln.stats(), "address": kiln.status()["address"], "seconds": time.time() - start,
                      "warnings": [str(w.message) for w in caught if "kiln" in str(w.message)]}))
""")


def call(place: Place, **environment: str) -> tuple[dict[str, Any], list[str]]:
    """(what the process says of itself, what it says to its user); its daemon is stopped."""
    output, errors = place.run(CALL, timeout=240, **environment)
    result = json.loads(output.strip().splitlines()[-1])
    stop_daemon(os.path.dirname(result["address"].removeprefix("unix:")))
    return result, [line for line in errors.splitlines() if line.startswith("kiln:")]


@pytest.mark.parametrize("variable", ["KILN_RUNTIME_DIR", "XDG_RUNTIME_DIR"])
def test_name_that_is_too_long_for_a_socket(place: Place, variable: str) -> None:
    long = os.path.join(place.root, "x" * 120)
    os.mkdir(long, mode=0o700)
    result, said = call(place, **{"KILN_RUNTIME_DIR": "", variable: long})
    assert result["stats"]["compiles"] == 2 and not result["stats"]["fallbacks"]
    assert result["address"].startswith(f"unix:/tmp/kiln-{os.geteuid()}/")
    assert len(said) == 1 and "too long for a socket" in said[0]


def test_directory_that_others_can_write_is_refused(place: Place) -> None:
    """However long its name is, the reason is told."""
    shared = os.path.join(place.root, "y" * 60)
    os.mkdir(shared)
    os.chmod(shared, 0o777)
    result, _ = call(place, KILN_RUNTIME_DIR=shared)
    (reason, count), = result["stats"]["fallbacks"].items()
    assert count == 2 and "can be written by others" in reason


def test_long_reasons_keep_their_end() -> None:
    from kiln.fallback import reason_of

    reason = reason_of("FAILED_PRECONDITION", "/" + "z" * 300 + " belongs to another user")
    assert reason.endswith("belongs to another user") and len(reason) < 250


@pytest.mark.parametrize("soft, hard, serves", [(48, 63, False), (48, 64, True)])
def test_few_open_files(place: Place, soft: int, hard: int, serves: bool) -> None:
    """At kDaemonOpenFilesMin (compiler_limits.h), to which the soft limit is raised, and one below it."""
    limits = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))"
    output, _ = place.run(CALL.replace("start = time.time()", f"{limits}; start = time.time()"))
    result = json.loads(output.strip().splitlines()[-1])
    if serves:
        assert result["stats"]["compiles"] == 2 and not result["stats"]["fallbacks"]
        return
    (reason, count), = result["stats"]["fallbacks"].items()
    assert count == 2 and "RLIMIT_NOFILE" in reason
    assert result["stats"]["seconds"].get("connect", 0) < 1
    assert len(result["warnings"]) == 1 and "ulimit -Hn" in result["warnings"][0] and "63" in result["warnings"][0]
