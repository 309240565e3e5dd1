"""kilnd and kilnctl as people call them: a daemon of one's own, and mistakes, which are named with the way out."""
import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from daemons import Place
from kiln.environment import daemon_binary


def program(name: str) -> str:
    return os.path.join(os.path.dirname(daemon_binary()), name)


def call(place: Place, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program(words[0]), *words[1:]], env={**os.environ, **place.environment}, text=True,
                          capture_output=True, timeout=30, cwd=place.root)


@pytest.mark.parametrize("listen", ["tcp", "socket"])
def test_a_daemon_of_ones_own(place: Place, listen: str) -> None:
    """A configuration file, a flag that overrides it, KILN_ADDRESS; SIGTERM ends it with 0."""
    config = os.path.join(place.root, "kilnd.textproto")
    where = "127.0.0.1:0" if listen == "tcp" else f"{place.root}/own/kilnd.sock"
    with open(config, "w") as file:
        field = "tcp" if listen == "tcp" else "unix_socket"
        file.write(f'listen {{ {field}: "{where}" dangerously_without_tls: true }}\nworkers {{ count: 2 }}\n'
                   f'store {{ directory: "{place.root}/not-here" }}\n')
    store, log = os.path.join(place.root, "here"), os.path.join(place.root, "log")
    daemon = subprocess.Popen([program("kilnd"), "--config", config, "--store", store, "--log-file", log])
    try:
        found = None
        deadline = time.time() + 60
        while found is None:
            assert time.time() < deadline and daemon.poll() is None
            time.sleep(0.05)
            if os.path.exists(log):
                with open(log) as file:
                    found = re.search(r" serves (\S+) with 2 workers", file.read())
        address = found[1]
        output, _ = place.run("import torch, kiln\n"
                              "torch.compile(lambda x: x + 1, backend='kiln')(torch.ones(2))\n"
                              "print(kiln.stats()['compiles'], kiln.status()['address'])",
                              KILN_ADDRESS=address, KILN_FALLBACK="error")
        assert output.split() == ["1", address]
        status = json.loads(call(place, "kilnctl", "--address", address, "status", "--json").stdout)
        assert (status["address"], status["store_directory"], status["workers"]) == (address, store, 2)
        assert not os.path.exists(place.runtime_dir), "no embedded daemon was started"
    finally:
        daemon.send_signal(signal.SIGTERM)
        code = daemon.wait(60)
    assert code == 0
    assert not os.path.exists(where)
    with open(log) as file:
        warned = "listen.dangerously_without_tls: whoever reaches 127.0.0.1:0 may call" in file.read()
    assert warned == (listen == "tcp")


@pytest.mark.parametrize("words, code, text", [
    ("kilnd", 2, "neither unix_socket nor tcp is given .--socket, --tcp"),
    ("kilnd --socket /tmp/x", 2, "store.directory: is not given .--store"),
    ("kilnd --sokcet /tmp/x", 2, "kilnd: .*--sokcet.*--help"),
    ("kilnd --config missing.textproto", 2, "missing.textproto cannot be read"),
    ("kilnd --config .", 2, "configuration file . cannot be read"),
    ("kilnd --config wrong.textproto", 2, "wrong.textproto: line 2, column .*no field named \"unix_sokcet\""),
    ("kilnd --tcp 127.0.0.1:7711 --store /tmp/x", 2, "is mutual TLS: give listen.tls, .*dangerously_without_tls"),
    ("kilnd --config tls.textproto --store {root}/s", 1, "listen.tls.authority: /none/ca cannot be read: No such file"),
    ("kilnd --config open.textproto --store /tmp/x", 2, "\"0.0.0.0\" is not the loopback"),
    ("kilnd --tcp 127.0.0.1:70000 --store /tmp/x", 2, "no number up to 65535"),
    ("kilnd --socket x.sock --store /tmp/x", 2, "listen.unix_socket: is no absolute path"),
    ("kilnd --socket {root}/a/x.sock --store {root}/s --workers many", 2, "--workers.*many"),
    ("kilnd --socket {root}/a/x.sock --store {root}/s --idle-exit-seconds -1", 2, "--idle-exit-seconds"),
    ("kilnd --socket {root}/a/x.sock --store {root}/s --worker-binary {root}/none", 1, "{root}/none: "),
    ("kilnd --embedded", 2, "--embedded needs --runtime-dir and --store"),
    ("kilnctl", 2, "kilnctl: .*--help"),
    ("kilnctl statsu", 2, "\"statsu\" is no command; the commands are status, stats, jobs, ls, show"),
    ("kilnctl status --jsno", 2, "--jsno"),
    ("kilnctl status --timeout 0", 2, "--timeout"),
    ("kilnctl show", 2, "KEY"),
    ("kilnctl rm", 2, "rm needs a KEY, or --all"),
    ("kilnctl rm 12 --all", 2, "excludes"),
    ("kilnctl diff 12", 2, "B is required"),
    ("kilnctl drain --undo --wait", 2, "excludes"),
    ("kilnctl completion fish", 2, "fish|subcommand"),
    ("kilnctl ls --limit few", 2, "few"),
    ("kilnctl export nightly", 2, "--output is required"),
    ("kilnctl export nightly -o {root}/none/bundle", 1, "{root}/none/bundle: No such file"),
    ("kilnctl import {root}/none", 2, "{root}/none: No such file"),
    ("kilnctl warm", 2, "FILE is required"),
    ("kilnctl --address somewhere status", 2, "--address: \"somewhere\" is no address.*unix:/path, /path or HOST:PORT"),
    ("kilnctl status", 3, "no kilnd answers at unix:{root}/run.*starts with the first compile"),
    ("kilnctl --address {root}/none.sock ls", 3, "no kilnd answers at unix:{root}/none.sock"),
])
def test_a_mistake_is_named_with_the_way_out(place: Place, words: str, code: int, text: str) -> None:
    with open(os.path.join(place.root, "wrong.textproto"), "w") as file:
        file.write('listen {\n  unix_sokcet: "/tmp/x"\n}\n')
    with open(os.path.join(place.root, "open.textproto"), "w") as file:
        file.write('listen { tcp: "0.0.0.0:7711" dangerously_without_tls: true }\n')
    with open(os.path.join(place.root, "tls.textproto"), "w") as file:
        file.write('listen { tcp: "0.0.0.0:0" tls { certificate: "/none/crt" key: "/none/key" authority: "/none/ca" }\n'
                   '  tenants { name: "red" identities: "kiln:red" } }\nworkers { count: 1 }\n')
    result = call(place, *(word.format(root=place.root) for word in words.split()))
    assert result.returncode == code
    assert re.search(text.format(root=re.escape(place.root)), result.stderr, re.DOTALL), result.stderr
    assert "INTERNAL" not in result.stderr and result.stderr.count("\n") <= 2


def test_a_socket_in_use(place: Place) -> None:
    """The second daemon says who holds it; the first goes on."""
    words = [program("kilnd"), "--socket", f"{place.root}/own/kilnd.sock", "--store", f"{place.root}/s"]
    with open(os.path.join(place.root, "log"), "w") as log:
        daemon = subprocess.Popen(words, stderr=log)
    try:
        deadline = time.time() + 60
        while call(place, "kilnctl", "--address", f"{place.root}/own/kilnd.sock", "status").returncode != 0:
            assert time.time() < deadline and daemon.poll() is None
            time.sleep(0.1)
        second = subprocess.run(words, text=True, capture_output=True, timeout=30)
        assert second.returncode == 1 and "another kilnd holds" in second.stderr
        other = subprocess.run([words[0], "--socket", f"{place.root}/other/kilnd.sock", *words[3:]], text=True,
                               capture_output=True, timeout=30)
        assert other.returncode == 1 and "the store is in use by another process" in other.stderr
        assert daemon.poll() is None
    finally:
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(60) == 0


def completed(words: list[str]) -> list[str]:
    """What bash completes the last word to, by the script that kilnctl prints."""
    kilnctl = program("kilnctl")
    text = f"""
        source <({kilnctl} completion bash)
        COMP_WORDS=(kilnctl {" ".join(f"'{word}'" for word in words)})
        COMP_CWORD={len(words)}
        _kilnctl
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    result = subprocess.run(["bash", "--norc", "-c", text], text=True, capture_output=True, timeout=30)
    assert result.returncode == 0 and result.stderr == "", result.stderr
    return sorted(set(result.stdout.split()))


@pytest.mark.parametrize("words, found", [
    (["wh"], ["why"]),
    (["show", "--li"], ["--listings"]),
    (["show", "--ever"], []),
    (["rm", "--ever"], ["--every-match"]),
    (["--address", "/tmp/x", "--json", "ev"], ["evict"]),
    (["--address", "sta"], []),
    (["rm", "12ab", "--al"], ["--all"]),
    (["im"], ["import"]),
    (["import", "--in"], ["--into"]),
    (["completion", ""], ["--address", "--help", "--json", "--timeout", "--tls-ca", "--tls-cert", "--tls-key",
                          "--version", "bash", "zsh"]),
])
def test_bash_completes_commands_and_options(words: list[str], found: list[str]) -> None:
    assert completed(words) == found


def test_completion_knows_every_command() -> None:
    text = subprocess.run([program("kilnctl"), "--help"], text=True, capture_output=True, check=True).stdout
    commands = re.findall(r"^  ([a-z]+)  ", text, re.MULTILINE)
    assert len(commands) > 15 and set(commands) <= set(completed([""]))


def test_help_has_an_example_of_every_command() -> None:
    text = subprocess.run([program("kilnctl"), "--help"], text=True, capture_output=True, check=True).stdout
    for command in re.findall(r"^  ([a-z]+)  ", text, re.MULTILINE):
        about = subprocess.run([program("kilnctl"), command, "--help"], text=True, capture_output=True, check=True)
        assert f"kilnctl {command}" in about.stdout.split("Example: ")[1], about.stdout


def test_zsh_takes_the_script() -> None:
    if shutil.which("zsh") is None:
        pytest.skip("no zsh here")
    result = subprocess.run(["zsh", "-f", "-c", "autoload -U compinit && compinit -D && "
                             f"source <({program('kilnctl')} completion zsh) && whence -w _kilnctl && "
                             "print ${_comps[kilnctl]}"], text=True, capture_output=True, timeout=30)
    assert result.stdout == "_kilnctl: function\n_kilnctl\n" and result.stderr == "", result.stdout + result.stderr
