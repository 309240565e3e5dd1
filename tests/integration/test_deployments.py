"""deploy/compose and deploy/systemd: their text is right, and programs take their files. No container, no unit is
started."""
import os
import pathlib
import re
import shutil
import subprocess
import time

import pytest
import yaml

from daemons import Place
from kiln.environment import daemon_binary

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


@pytest.fixture
def prepared(place: Place) -> pathlib.Path:
    """A copy of compose.yaml with what prepare.sh makes beside it; in /tmp because a socket's path is short."""
    folder = pathlib.Path(place.root) / "compose"
    folder.mkdir()
    shutil.copy(DEPLOY / "compose" / "compose.yaml", folder)
    subprocess.run([DEPLOY / "compose" / "prepare.sh", folder], check=True, timeout=60, stdout=subprocess.DEVNULL)
    return folder


def compose_command() -> list[str]:
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) is None:
            continue
        said = subprocess.run([*command, "version", "--short"], text=True, capture_output=True)
        # Debian's docker-compose is of the first generation, which knows less of interpolation.
        if said.returncode == 0 and not said.stdout.startswith("1."):
            return command
    pytest.skip("no docker compose of version 2 or later on this host (docker-compose-plugin)")


@pytest.mark.parametrize("old, new, told", [
    ("", "", None),
    ("  farm-2: {}\n", "", "farm-2"),  # the last: the volume
    ("{KILN_UID:?", "{KILN_NOBODY:?", "run prepare.sh"),
    ("cap_drop: [ALL]", "cap_dropped: [ALL]", "cap_dropped"),
])
def test_compose_takes_the_file(prepared: pathlib.Path, old: str, new: str, told: str | None) -> None:
    file = prepared / "compose.yaml"
    before, _, after = file.read_text().rpartition(old) if old else (file.read_text(), "", "")
    file.write_text(before + new + after)
    ran = subprocess.run([*compose_command(), "-f", file, "config", "-q"], cwd=prepared, text=True,
                         capture_output=True, timeout=60)
    assert (ran.returncode == 0) == (told is None), ran.stderr
    assert (told or "") in ran.stderr


def test_what_compose_mounts_is_there(prepared: pathlib.Path) -> None:
    """And no trainer is given what is another's: keys of the daemons, the tier's password, its network."""
    services = yaml.safe_load((prepared / "compose.yaml").read_text())["services"]
    given = {}
    for name, service in services.items():
        mounted = [volume.split(":")[0] for volume in service["volumes"] if volume.startswith("./")]
        assert mounted and all((prepared / folder).is_dir() for folder in mounted), name
        given[name] = {path.name for folder in mounted for path in (prepared / folder).iterdir()}
    assert {"kilnd.textproto", "tunnel.conf", "server.key", "kilnd.key", "tier.password"} <= given["farm-1"]
    assert {"redis.conf", "users.acl", "server.key"} <= given["tier"]
    for trainer in ("trainer-1", "trainer-2"):
        assert given[trainer] == {"ca.crt", "train.crt", "train.key"}
        assert not set(services[trainer]["networks"]) & set(services["tier"]["networks"])
    assert not any("ca.key" in names for names in given.values())
    secret = [path for path in (prepared / "secrets").rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o077 for path in secret} == {0}


@pytest.mark.skipif(not all(map(shutil.which, ("redis-server", "stunnel"))),
                    reason="no redis-server or stunnel (deploy/install_deps.sh)")
def test_daemon_tunnel_and_tier_take_their_files(place: Place, prepared: pathlib.Path) -> None:
    """As processes of this host: the names of containers and their folders are replaced, and kilnd finds the tier."""
    secrets, run = prepared / "secrets", pathlib.Path(place.root) / "r"
    run.mkdir(mode=0o700)
    port = 20000 + os.getpid() % 20000

    def write(part: str, name: str, *changes: tuple[str, str]) -> pathlib.Path:
        path = secrets / part / name
        text = path.read_text()
        for old, new in (("/etc/kiln", str(secrets / part)), ("/run/kiln", str(run)), *changes):
            assert old == "/run/kiln" or old in text, f"{name}: {old}"
            text = text.replace(old, new)
        path.write_text(text)
        return path

    for path in [secrets, *secrets.rglob("*")]:
        os.chown(path, os.geteuid(), -1)
    redis = write("tier", "redis.conf", ("tls-port 6379", f"tls-port {port}"))
    tunnel = write("farm", "tunnel.conf", ("connect = tier:6379", f"connect = 127.0.0.1:{port}"))
    config = write("farm", "kilnd.textproto", ("0.0.0.0:7711", "127.0.0.1:0"), ("/var/lib/kiln", f"{place.root}/lib"))
    (pathlib.Path(place.root) / "lib").mkdir(mode=0o700)
    log = prepared / "log"
    commands: list[list[str | pathlib.Path]] = [["redis-server", redis], ["stunnel", tunnel],
                                                [daemon_binary(), "--config", config]]
    for command in commands:
        with open(log, "a") as file:
            place.processes.append(subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, umask=0o077))
    deadline = time.time() + 60
    kilnctl = pathlib.Path(daemon_binary()).with_name("kilnctl")
    while True:
        ran = subprocess.run([kilnctl, "--address", f"unix:{run}/kilnd.sock", "status"], text=True,
                             capture_output=True, timeout=60)
        if ran.returncode == 0 and "tier" in ran.stdout and "NOT CONNECTED" not in ran.stdout:
            break
        if time.time() >= deadline or any(process.poll() is not None for process in place.processes):
            pytest.fail(ran.stdout + ran.stderr + log.read_text())
        time.sleep(0.1)
    assert (run / "tier.sock").stat().st_mode & 0o077 == 0


def faults_of(unit: pathlib.Path, text: str, tmp_path: pathlib.Path) -> str:
    """What systemd says of a unit whose program is one of this host."""
    path = tmp_path / unit.name
    path.write_text(text.replace("/opt/kiln/bin/kilnd", daemon_binary()))
    ran = subprocess.run(["systemd-analyze", "verify", "--man=no", path], text=True, capture_output=True, timeout=60)
    return ran.stdout + ran.stderr


@pytest.mark.skipif(not all(map(shutil.which, ("systemd-analyze", "stunnel"))),
                    reason="no systemd-analyze or stunnel (apt-get install systemd stunnel4)")
@pytest.mark.parametrize("unit", UNITS, ids=[unit.name for unit in UNITS])
def test_systemd_takes_the_units(unit: pathlib.Path, tmp_path: pathlib.Path) -> None:
    text = unit.read_text()
    assert faults_of(unit, text, tmp_path) == ""
    assert "Unknown key 'RestrictNamespace'" in faults_of(unit, text + "[Service]\nRestrictNamespace=yes\n", tmp_path)
    assert "not executable" in faults_of(unit, text.replace("ExecStart=/", "ExecStart=/none/"), tmp_path)


def test_the_unit_leaves_workers_what_their_sandbox_takes() -> None:
    """Namespaces that kilnd makes and calls of its sandbox are not taken from it (compiler/worker/namespaces.cc)."""
    unit = (DEPLOY / "systemd" / "kilnd.service").read_text()
    settings = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line and not line.startswith("#"))
    assert set(settings["RestrictNamespaces"].split()) == {"user", "mnt", "net", "ipc", "pid"}
    assert {"@mount", "unshare", "seccomp", "landlock_restrict_self"} <= set(settings["SystemCallFilter"].split())
    assert settings["RuntimeDirectory"] == "kiln" and "kiln/store" in settings["StateDirectory"].split()


def test_kilnd_takes_the_units_configuration(place: Place) -> None:
    """As a user's of this host: with the unit's directories elsewhere it serves, socket open to its tenants."""
    root = pathlib.Path(place.root)
    for folder, mode in (("run", 0o755), ("store", 0o700), ("keys", 0o700)):
        (root / folder).mkdir()
        (root / folder).chmod(mode)
    text = (DEPLOY / "systemd" / "kilnd.textproto").read_text()
    for old, new in (("/run/kiln/", f"{root}/run/"), ("/var/lib/kiln/", f"{root}/")):
        assert old in text
        text = text.replace(old, new)
    config = root / "kilnd.textproto"
    config.write_text(text)
    with open(root / "log", "w+") as log:
        daemon = subprocess.Popen([daemon_binary(), "--config", config], stderr=log)
        place.processes.append(daemon)
        deadline = time.time() + 60
        while not (root / "run" / "kilnd.sock").exists():
            log.seek(0)
            assert daemon.poll() is None and time.time() < deadline, log.read()
            time.sleep(0.05)
    assert (root / "keys" / "signing.pem").stat().st_mode & 0o077 == 0


DIGEST = "sha256:" + 64 * "a"


def pinned(folder: pathlib.Path, says: str) -> subprocess.CompletedProcess[str]:
    """pin.sh's end, where the registry, by a docker that is a script, says that of every image."""
    docker = folder / "bin" / "docker"
    docker.parent.mkdir(exist_ok=True)
    docker.write_text(f"#!/bin/sh\necho '{says}'\n")
    docker.chmod(0o755)
    return subprocess.run([DEPLOY / "compose" / "pin.sh", folder], text=True, capture_output=True, timeout=60,
                          env={**os.environ, "PATH": f"{docker.parent}:{os.environ['PATH']}"})


def test_images_are_pinned_by_digest(prepared: pathlib.Path) -> None:
    """Every image that is fetched takes one; prepare.sh leaves them there."""
    fetched = set()
    for name in ("compose.yaml", "Dockerfile"):
        text = (DEPLOY / "compose" / name).read_text()
        fetched |= set(re.findall(r"^\s*(?:FROM|image:)\s+[\"']?([a-z]+:[\w.-]+)", text, re.MULTILINE))
    assert len(fetched) == 3
    before = (prepared / ".env").read_text()
    assert "DIGEST" not in before
    refused = pinned(prepared, "nothing")
    assert refused.returncode and "no digest" in refused.stderr and (prepared / ".env").read_text() == before
    for _ in range(2):
        told = pinned(prepared, DIGEST)
        assert told.returncode == 0, told.stderr
        assert set(told.stdout.split()) == {f"{image}@{DIGEST}" for image in fetched}
        lines = (prepared / ".env").read_text().splitlines()
        assert len(lines) == len(set(lines)) == len(before.splitlines()) + len(fetched)
    subprocess.run([DEPLOY / "compose" / "prepare.sh", prepared], check=True, timeout=60, stdout=subprocess.DEVNULL)
    assert sorted((prepared / ".env").read_text().splitlines()) == sorted(lines)


@pytest.mark.parametrize("says", [None, DIGEST])
def test_compose_takes_the_digests(prepared: pathlib.Path, says: str | None) -> None:
    if says is not None:
        assert pinned(prepared, says).returncode == 0
    ran = subprocess.run([*compose_command(), "-f", prepared / "compose.yaml", "config"], cwd=prepared, text=True,
                         capture_output=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    services = yaml.safe_load(ran.stdout)["services"]
    assert services["tier"]["image"] == "redis:7.4.5-bookworm" + (f"@{says}" if says else "")


def unpinned(text: str) -> list[str]:
    """What is fetched without an exact version: images of FROM and image:, requirements of pip install."""
    text = re.sub(r"\\\n", " ", text)
    images = re.findall(r"^\s*FROM\s+(?:--\S+\s+)*(\S+)", text, re.MULTILINE)
    # An image that the file builds is nobody else's.
    images += re.findall(r"^\s*image:\s*[\"']?([^\s\"'#]+)(?!.*\n\s*build:)", text, re.MULTILINE)
    images = [re.sub(r"\$\{(\w+_DIGEST):\+@\}\$\{\1(:-)?\}$", "", image) for image in images]
    stages = re.findall(r"^\s*FROM\s.*\sAS\s+(\S+)", text, re.MULTILINE | re.IGNORECASE)
    found = [image for image in images if image not in stages
             and not re.search(r"@sha256:[0-9a-f]{64}$|:v?\d+\.\d+(\.\d+)?([-.+][\w.-]+)*$", image)]
    for words in re.findall(r"\bpip3? install\s+(.*?)(?:&&|\|\||[;|\n]|$)", text, re.MULTILINE):
        found += [word for word in words.split() if not word.startswith(("-", "$", '"$', ">", "2>"))
                  and not re.fullmatch(r"[\"']?[\w.-]+(\[[\w,]+\])?==[\w.+!-]+[\"']?", word)]
    return found


@pytest.mark.parametrize("text, found", [
    ("FROM debian:12.11-slim AS daemon\nFROM daemon\n", []),
    ("FROM --platform=linux/amd64 debian:12-slim AS daemon\n", ["debian:12-slim"]),
    ("FROM debian\n", ["debian"]),
    ("FROM debian@sha256:" + 64 * "a" + "\n", []),
    ("  tier:\n    image: redis:7-bookworm\n    user: a\n", ["redis:7-bookworm"]),
    ("  tier:\n    image: redis:7.4.5-bookworm\n", []),
    ("  tier:\n    image: redis:latest\n", ["redis:latest"]),
    ('  tier:\n    image: "redis:7.4.5${A_DIGEST:+@}${A_DIGEST:-}"\n', []),
    ("FROM debian:12${A_DIGEST:+@}${A_DIGEST} AS daemon\n", ["debian:12"]),
    ("FROM debian:12.11${A_TAG:+-}${A_TAG} AS daemon\n", ["debian:12.11${A_TAG:+-}${A_TAG}"]),
    ("  tier:\n    image: kiln-daemon\n    build: .\n", []),
    ("RUN pip install --no-cache-dir torch==2.13.0 \\\n  numpy && useradd train\n", ["numpy"]),
    ("RUN pip install torch==2.13.0 'numpy>=2'\n", ["'numpy>=2'"]),
    ('python -m pip install -q --no-deps "$root" >log\n', []),
])
def test_what_has_no_exact_version_is_found(text: str, found: list[str]) -> None:
    assert unpinned(text) == found


def test_what_is_fetched_has_an_exact_version() -> None:
    files = [path for path in [*DEPLOY.rglob("*"), *(DEPLOY.parent / ".ci").iterdir()] if path.is_file()]
    assert {"Dockerfile", "compose.yaml", "setup.sh"} <= {path.name for path in files}
    assert {path.name: unpinned(path.read_text()) for path in files if unpinned(path.read_text())} == {}
