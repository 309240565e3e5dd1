"""Python processes and kilnctl that reach a kilnd by mutual TLS, with the certificates that people make for trying."""
import json
import os
import pathlib
import re
import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from daemons import Place
from kiln.environment import daemon_binary

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"
CALL = """
import json, warnings
import torch, kiln
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    result = torch.compile(lambda x: x.sin() + 1, backend="kiln")(torch.ones(3))
    torch.testing.assert_close(result, torch.ones(3).sin() + 1)
print(json.dumps({**kiln.stats(), "warnings": [str(w.message) for w in caught if "kiln" in str(w.message)]}))
"""


Farm: TypeAlias = Callable[[str], dict[str, str]]


def program(name: str) -> str:
    return os.path.join(os.path.dirname(daemon_binary()), name)


def make_certificates(folder: str, *names: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([DEPLOY / "make_dev_certs.sh", folder, *names], text=True, capture_output=True, timeout=60)


@pytest.fixture
def farm(place: Place) -> Farm:
    """(KILN_* of a tenant, by its name); a kilnd on the loopback serves read, train and ops."""
    certificates = os.path.join(place.root, "certs")
    names = ("read", "train", "ops", "stranger")
    made = make_certificates(certificates, *(f"{name}=spiffe://example.org/{name}" for name in names))
    assert made.returncode == 0, made.stderr
    config, log = os.path.join(place.root, "kilnd.textproto"), os.path.join(place.root, "log")
    files = (f'certificate: "{certificates}/server.crt" key: "{certificates}/server.key" '
             f'authority: "{certificates}/ca.crt"')
    roles = {"read": "roles: ROLE_READ", "train": "", "ops": "roles: ROLE_ADMIN"}
    tenants = " ".join(f'tenants {{ name: "{name}" identities: "spiffe://example.org/{name}" {role} }}'
                       for name, role in roles.items())
    with open(config, "w") as file:
        file.write(f'listen {{ tcp: "127.0.0.1:0" tls {{ {files} }} {tenants} }}\nworkers {{ count: 1 }}\n'
                   f'store {{ directory: "{place.root}/store" }}\n')
    daemon = subprocess.Popen([program("kilnd"), "--config", config, "--log-file", log])
    place.processes.append(daemon)
    deadline = time.time() + 60
    found = None
    while found is None:
        assert time.time() < deadline and daemon.poll() is None
        time.sleep(0.05)
        if os.path.exists(log):
            with open(log) as file:
                found = re.search(r" serves (\S+) with ", file.read())

    def of(name: str) -> dict[str, str]:
        return {"KILN_ADDRESS": found[1], "KILN_TLS_CA": f"{certificates}/ca.crt",
                "KILN_TLS_CERT": f"{certificates}/{name}.crt", "KILN_TLS_KEY": f"{certificates}/{name}.key"}

    return of


def call(place: Place, environment: dict[str, str]) -> dict[str, Any]:
    output, _ = place.run(CALL, timeout=240, **environment)
    told: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return told


def test_a_tenant_compiles_and_the_next_process_hits(place: Place, farm: Farm) -> None:
    first, second = call(place, farm("train")), call(place, farm("train"))
    assert (first["compiles"], first["fallbacks"]) == (1, {})
    assert (second["hits"], second["compiles"], second["fallbacks"]) == (1, 0, {})


FORK = """
import json, os, sys
import torch, kiln
def compiled(operator):
    result = torch.compile(lambda x: operator(x) + 1, backend="kiln")(torch.ones(3))
    torch.testing.assert_close(result, operator(torch.ones(3)) + 1)
    stats = kiln.stats()
    assert stats["compiles"] > 0 and not stats["fallbacks"], stats
compiled(torch.sin)
children = []
for here, there in ((torch.cos, torch.exp), (torch.tanh, torch.sigmoid)):
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        try:
            compiled(there)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(3)
        os._exit(0)
    children.append(child)
    compiled(here)  # at the same time
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
print(json.dumps(kiln.stats()))
"""


def test_parent_and_child_compile_after_a_fork(place: Place, farm: Farm) -> None:
    output, _ = place.run(FORK, timeout=240, **farm("train"))
    stats = json.loads(output.strip().splitlines()[-1])
    assert (stats["compiles"], stats["fallbacks"]) == (3, {})


def test_an_embedded_daemon_asks_the_farm(place: Place, farm: Farm) -> None:
    environment = farm("train")
    environment["KILN_UPSTREAM"] = environment.pop("KILN_ADDRESS")
    first = call(place, environment)
    assert (first["compiles"], first["fallbacks"]) == (1, {})
    checked = subprocess.run([program("kilnctl"), "doctor"], env={**os.environ, **place.environment, **environment},
                             text=True, capture_output=True, timeout=60)
    assert re.search(rf"upstream +ok +{environment['KILN_UPSTREAM']}", checked.stdout), checked.stdout
    # Another host's process has it from there.
    assert call(place, farm("train"))["hits"] == 1


@pytest.mark.parametrize("name, changes, reason", [
    ("read", {}, "permission_denied: .*needs role compile, which tenant \"read\" lacks"),
    ("stranger", {}, "unauthenticated: .*spiffe://example.org/stranger is no tenant's"),
    ("train", {"KILN_TLS_CERT": "/none.crt"}, "failed_precondition: KILN_TLS_CERT: /none.crt cannot be read"),
    ("train", {"KILN_TLS_CA": "train.crt"}, "unauthenticated: .*do not take each other's certificates.*verify failed"),
    ("server", {}, "unauthenticated: .*do not take each other's certificates"),
])
def test_a_graph_runs_without_kiln_and_the_reason_is_told(place: Place, farm: Farm, name: str, changes: dict[str, str],
                                                          reason: str) -> None:
    environment = farm(name)
    for variable, value in changes.items():
        environment[variable] = os.path.join(os.path.dirname(environment["KILN_TLS_CA"]), value)
    stats = call(place, environment)
    (told, count), = stats["fallbacks"].items()
    assert count == 1 and stats["compiles"] == 0
    assert any(re.search(reason.partition(": ")[2], warning) for warning in stats["warnings"]), stats["warnings"]
    assert told.startswith(reason.partition(":")[0]), told


@pytest.mark.parametrize("variables, reason", [
    ({"KILN_ADDRESS": "farm.example:7711"}, "farm.example:7711 is another host's, which is reached by mutual TLS"),
    ({"KILN_ADDRESS": "localhost:7711", "KILN_TLS_CA": "ca", "KILN_TLS_CERT": "crt"}, "not set: KILN_TLS_KEY"),
    ({"KILN_UPSTREAM": "farm.example"}, "KILN_UPSTREAM: \"farm.example\" is no address of a kilnd"),
    ({"KILN_UPSTREAM": "farm.example:7711"}, "KILN_UPSTREAM: farm.example:7711 is another host's"),
    ({"KILN_UPSTREAM": "farm.example:7711", "KILN_TLS_CA": "/none", "KILN_TLS_CERT": "/none", "KILN_TLS_KEY": "/none"},
     "KILN_UPSTREAM: KILN_TLS_CA: /none cannot be read"),
    ({"KILN_UPSTREAM": "unix:/run/a", "KILN_ADDRESS": "unix:/run/b"}, "set one of them"),
])
def test_what_is_missing_is_an_error_that_names_it(place: Place, variables: dict[str, str], reason: str) -> None:
    process = place.start(CALL, **variables)
    _, errors = process.communicate(timeout=240)
    assert process.returncode != 0 and reason in errors, errors[-2000:]


def test_kilnctl_is_for_administrators(farm: Farm) -> None:
    def ask(*words: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program("kilnctl"), *words], env={**os.environ, **environment}, text=True,
                              capture_output=True, timeout=60)

    ops = farm("ops")
    assert ask("status", environment=ops).returncode == 0
    flags = ("--address", ops["KILN_ADDRESS"], "--tls-ca", ops["KILN_TLS_CA"], "--tls-cert", ops["KILN_TLS_CERT"])
    assert ask("status", *flags, "--tls-key", ops["KILN_TLS_KEY"], environment={}).returncode == 0
    missing = ask("status", *flags, environment={})
    assert missing.returncode == 2 and "not set: --tls-key (KILN_TLS_KEY)" in missing.stderr
    refused = ask("status", environment=farm("train"))
    assert refused.returncode == 1 and "Admin.Status needs role admin, which tenant \"train\" lacks" in refused.stderr
    checked = ask("doctor", environment=farm("train"))
    assert checked.returncode == 1 and "needs role admin" in checked.stdout
    stranger = ask("status", environment=farm("stranger"))
    assert stranger.returncode == 1 and "is no tenant's" in stranger.stderr


def test_certificates_for_trying(place: Place) -> None:
    """Again for more names, what is there stays; a mistake is named."""
    folder = os.path.join(place.root, "certs")
    assert make_certificates(folder, "a=kiln:a").stdout.count(".crt\n") == 3  # the authority's, kilnd's, a's
    again = make_certificates(folder, "a=kiln:a", "b=kiln:b")
    assert again.stdout == f"{folder}/b.crt\n"
    modes = {name: os.stat(os.path.join(folder, name)).st_mode & 0o777 for name in os.listdir(folder)}
    assert set(modes) == {f"{name}.{kind}" for name in ("ca", "server", "a", "b") for kind in ("crt", "key")}
    assert set(modes.values()) == {0o600}
    for words in (["a"], ["=kiln:a"], ["a/b=kiln:a"], ["a=nothing"]):
        wrong = make_certificates(folder, *words)
        assert wrong.returncode == 2 and f'"{words[0]}" is no NAME=URI' in wrong.stderr
    assert subprocess.run([DEPLOY / "make_dev_certs.sh"], capture_output=True).returncode == 2
