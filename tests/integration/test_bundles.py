"""What a real job used goes to other daemons as a bundle: there its programs are hits, and run."""
import json
import os
import re
import subprocess
import time
from typing import Any, TypeAlias

import pytest

from daemons import Place
from kiln.environment import daemon_binary

TRAIN = """
import json
import torch, kiln
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
compiled = torch.compile(model, backend="kiln")
losses = []
for step in range(3):
    loss = compiled(torch.randn(8, 16)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
print(json.dumps({"losses": losses, **kiln.stats()}))
"""


Exported: TypeAlias = tuple[dict[str, Any], str, str]


def program(name: str) -> str:
    return os.path.join(os.path.dirname(daemon_binary()), name)


class Farm:
    """A kilnd of its own, by a socket and a configuration."""

    def __init__(self, place: Place, name: str, config: str = "") -> None:
        self.place = place
        self.folder = os.path.join(place.root, name)
        os.mkdir(self.folder, mode=0o700)
        self.address = f"unix:{self.folder}/kilnd.sock"
        path = os.path.join(self.folder, "kilnd.textproto")
        with open(path, "w") as file:
            file.write(f'{config}\nstore {{ directory: "{self.folder}/store" }}\nworkers {{ count: 1 }}\n')
        place.processes.append(subprocess.Popen([program("kilnd"), "--config", path, "--socket",
                                                 f"{self.folder}/kilnd.sock", "--log-file", f"{self.folder}/log"]))
        deadline = time.time() + 60
        while self.ask("status").returncode != 0:
            assert time.time() < deadline
            time.sleep(0.05)

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program("kilnctl"), "--address", self.address, *words], text=True, capture_output=True,
                              timeout=60)

    def told(self, *words: str) -> str:
        answer = self.ask(*words)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return answer.stdout

    def train(self) -> dict[str, Any]:
        """What a process prints that has seen none of torch's caches."""
        output, _ = self.place.run(TRAIN, KILN_ADDRESS=self.address, KILN_JOB="nightly", KILN_FALLBACK="error",
                                   TORCHINDUCTOR_CACHE_DIR=os.path.join(self.folder, "torch"))
        told: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
        return told


@pytest.fixture
def exported(place: Place) -> Exported:
    """(What the job said where it compiled, its bundle, `signing` of a daemon that takes it.)"""
    farm = Farm(place, "ci")
    said = farm.train()
    assert (said["compiles"], said["hits"]) == (2, 0)
    bundle = os.path.join(place.root, "nightly.kiln")
    farm.told("export", "nightly", "-o", bundle)
    key = json.loads(farm.told("keys", "--json"))["own"]["public_key"]
    name_space = json.loads(farm.told("show", "--json", json.loads(farm.told("ls", "--json"))["entries"][0]
                                      ["compile_key"]))["entries"][0]["manifest"]["namespace"]
    return said, bundle, f'signing {{ trusted {{ public_key: "{key}" namespaces: "{name_space}" }} }}'


def test_a_job_compiles_nothing_where_its_bundle_is(place: Place, exported: Exported) -> None:
    said, bundle, signing = exported
    farm = Farm(place, "production", signing)
    warmed = json.loads(farm.told("warm", "--json", bundle))
    assert (warmed["fresh"]["programs"], warmed["there"]["programs"], warmed["pinned"]) == (2, 0, 2)
    there = farm.train()
    assert (there["compiles"], there["hits"], there["fallbacks"]) == (0, 2, {})
    assert there["losses"] == said["losses"]
    assert re.search(r"programs +0 +2\n", farm.told("import", bundle))


@pytest.mark.parametrize("into", ["train", "blessed"])
def test_a_bundle_of_the_build_service_serves_a_tenant(place: Place, exported: Exported, into: str) -> None:
    """Its own namespace, or one that it reads."""
    said, bundle, signing = exported
    farm = Farm(place, "production",
                f'{signing} listen {{ tenants {{ name: "train" uids: {os.getuid()} reads: "blessed" }} }}')
    refused = farm.ask("import", bundle)
    assert refused.returncode == 1 and "listen.tenants.reads" in refused.stderr
    farm.told("import", "--into", into, bundle)
    there = farm.train()
    assert (there["compiles"], there["hits"], there["fallbacks"]) == (0, 2, {})
    assert there["losses"] == said["losses"]
