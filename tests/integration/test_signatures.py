"""Whose programs a process runs: the keys that its daemon lists, and KILN_TRUSTED_KEYS."""
import json
import os
import pathlib
import shutil
import stat
import subprocess
import textwrap
from typing import Any

from daemons import Place, stop_daemon
from kiln.environment import daemon_binary

CALL = textwrap.dedent("""
    import json
    import torch, kiln
    result = torch.compile(lambda x: x.sin() + 1, backend="kiln")(torch.ones(3))
    torch.testing.assert_close(result, torch.ones(3).sin() + 1)
    print(json.dumps(kiln.stats()))
""")


def call(place: Place, **environment: str) -> dict[str, Any]:
    output, _ = place.run(CALL, timeout=240, **environment)
    told: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return told


def own_key(place: Place) -> dict[str, Any]:
    kilnctl = os.path.join(os.path.dirname(daemon_binary()), "kilnctl")
    command = [kilnctl, "--address", os.path.join(place.runtime_dir, "kilnd.sock"), "keys", "--json"]
    told: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["own"]
    return told


def test_a_key_outlives_the_daemon_and_its_place(place: Place) -> None:
    assert call(place)["compiles"] == 1
    key = own_key(place)
    path = place.store_dir + ".keys/signing.pem"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    stop_daemon(place.runtime_dir)
    shutil.rmtree(place.runtime_dir)
    assert call(place)["hits"] == 1 and own_key(place) == key

    # The control: with the key goes what it has signed.
    stop_daemon(place.runtime_dir)
    os.remove(path)
    assert call(place)["compiles"] == 1 and own_key(place) != key


def test_named_keys_narrow_those_of_the_daemon(place: Place, tmp_path: pathlib.Path) -> None:
    assert call(place)["compiles"] == 1
    own, other = own_key(place)["public_key"], "A" * 43 + "="
    assert call(place, KILN_TRUSTED_KEYS=own)["hits"] == 1
    keys = tmp_path / "keys"
    keys.write_text(f"# of this machine\n{other}\n{own}\n")
    assert call(place, KILN_TRUSTED_KEYS=str(keys))["hits"] == 1

    stats = call(place, KILN_TRUSTED_KEYS=other)
    (reason, count), = stats["fallbacks"].items()
    assert count == 1 and "its key is not trusted" in reason
    assert stats["hits"] == stats["compiles"] == 0

