"""A kilnd of a host that passes on to a farm's by mutual TLS what it lacks, with real workers and jobs."""
import json
import os
import pathlib
import re
import signal
import subprocess
import time
from typing import Any

import pytest

from daemons import Place
from kiln.environment import daemon_binary

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"
CALL = """
import json, sys
import torch, kiln
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
inputs = torch.ones(3, 8)
result = torch.compile(model, backend="kiln")(inputs)
torch.testing.assert_close(result, model(inputs))
result.sum().backward()
print(json.dumps(kiln.stats()))
"""


def program(name: str) -> str:
    return os.path.join(os.path.dirname(daemon_binary()), name)


def kilnctl(socket: str, *words: str) -> str:
    finished = subprocess.run([program("kilnctl"), "--address", f"unix:{socket}", *words], text=True,
                              capture_output=True, timeout=60)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


class Daemon:
    """A kilnd with a store, a key and a log in a folder of its own."""

    def __init__(self, place: Place, name: str, config: str) -> None:
        self.folder = os.path.join(place.root, name)
        os.makedirs(self.folder, mode=0o700)
        self.socket, self.log = f"{self.folder}/kilnd.sock", f"{self.folder}/log"
        config_file = f"{self.folder}/kilnd.textproto"
        with open(config_file, "w") as file:
            file.write(config + f'\nworkers {{ count: 1 }}\nstore {{ directory: "{self.folder}/store" }}\n')
        self.process = subprocess.Popen([program("kilnd"), "--config", config_file, "--socket", self.socket,
                                         "--log-file", self.log])
        place.processes.append(self.process)
        deadline = time.time() + 60
        while not self.tells(r" serves ") or not os.path.exists(self.socket):
            assert time.time() < deadline and self.process.poll() is None
            time.sleep(0.05)

    def tells(self, pattern: str) -> re.Match[str] | None:
        if not os.path.exists(self.log):
            return None
        with open(self.log) as file:
            return re.search(pattern, file.read())

    def stats(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(kilnctl(self.socket, "--json", "stats"))
        return told

    def stop(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def count(stats: dict[str, Any], name: str) -> int:
    return int(stats.get(name, 0))


@pytest.fixture
def certificates(place: Place) -> str:
    folder = os.path.join(place.root, "certs")
    made = subprocess.run([DEPLOY / "make_dev_certs.sh", folder, "train=spiffe://example.org/train"], text=True,
                          capture_output=True, timeout=60)
    assert made.returncode == 0, made.stderr
    return folder


def tls(folder: str, name: str) -> str:
    return f'tls {{ certificate: "{folder}/{name}.crt" key: "{folder}/{name}.key" authority: "{folder}/ca.crt" }}'


@pytest.fixture
def farm(place: Place, certificates: str) -> Daemon:
    return Daemon(place, "farm", f'listen {{ tcp: "127.0.0.1:0" {tls(certificates, "server")} tenants {{ name: "train" '
                                 f'uids: {os.getuid()} identities: "spiffe://example.org/train" }} }}')


def host(place: Place, name: str, certificates: str, farm: Daemon, more: str = "") -> Daemon:
    key = json.loads(kilnctl(farm.socket, "--json", "keys"))["own"]
    address = farm.tells(r"(localhost|127\.0\.0\.1):\d+")
    assert address
    return Daemon(place, name, f'listen {{ tenants {{ name: "train" uids: {os.getuid()} }} }}\n'
                               f'signing {{ trusted {{ public_key: "{key["public_key"]}" namespaces: "train" }} }}\n'
                               f'upstream {{ address: "{address[0]}" {tls(certificates, "train")} lookup_ms_max: 20000 '
                               f'{more} }}')


def call(place: Place, daemon: Daemon) -> dict[str, Any]:
    output, _ = place.run(CALL, KILN_ADDRESS=f"unix:{daemon.socket}")
    told: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return told


def test_the_farm_compiles_for_its_hosts(place: Place, certificates: str, farm: Daemon) -> None:
    first, second = (host(place, name, certificates, farm) for name in ("first", "second"))
    told = call(place, first)
    assert told["fallbacks"] == {} and told["compiles"] == 2  # forward and backward, elsewhere
    assert count(first.stats(), "compiles") == 0 and count(first.stats(), "forwarded") == 2
    assert count(farm.stats(), "compiles") == 2
    assert call(place, second)["fallbacks"] == {}
    assert count(second.stats(), "compiles") == 0 and count(second.stats(), "forwarded") == 0
    assert count(farm.stats(), "compiles") == 2
    assert "connected" in kilnctl(first.socket, "status")
    farm.stop()
    assert call(place, first)["hits"] == 2


@pytest.mark.parametrize("more, compiles", [("", 2), ("when_away: AWAY_FAIL", 0)])
def test_without_the_farm_it_is_as_configured(place: Place, certificates: str, farm: Daemon, more: str,
                                              compiles: int) -> None:
    daemon = host(place, "host", certificates, farm, more)
    farm.stop()
    stats = call(place, daemon)
    assert count(daemon.stats(), "compiles") == compiles
    assert list(stats["fallbacks"]) == ([] if compiles else ["service unavailable"])
    assert "NOT CONNECTED" in kilnctl(daemon.socket, "status")
