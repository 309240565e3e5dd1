"""deploy/bundle.sh's tarball, unpacked somewhere else, runs by itself."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from daemons import Place

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_BUILD = os.environ.get("KILN_BUILD", os.path.join(_ROOT, "build"))
_MISSING = [tool for tool in ("patchelf", "strip", "ldd", "gzip") if shutil.which(tool) is None]
_MISSING += [name
             for name in ("client/python/_C.abi3.so", "bin/kilnd", "bin/kiln-call", "bin/kiln-worker", "bin/kiln-tuner",
                          "bin/kilnctl")
             if not os.path.exists(os.path.join(_BUILD, name))]

pytestmark = pytest.mark.skipif(bool(_MISSING), reason=f"no {', '.join(_MISSING)}")

_COMPILE = """
import torch, kiln
x = torch.randn(8, 16)
torch.testing.assert_close(torch.compile(lambda x: torch.softmax(x, -1) + 1, backend="kiln")(x),
                           torch.softmax(x, -1) + 1)
import kiln
print(kiln.__file__, kiln.status()["daemon"], kiln.stats()["compiles"], kiln.stats()["fallbacks"], sep="\\n",
      flush=True)
import os
if (child := os.fork()) == 0:  # has its graphs compiled by kiln-call
    torch.set_num_threads(1)
    torch.compile(lambda x: torch.softmax(x, -1) + 2, backend="kiln")(x)
    os._exit(len(kiln.stats()["fallbacks"]))
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("bundle")
    archive = folder / "kiln.tar.gz"
    subprocess.run([os.path.join(_ROOT, "deploy", "bundle.sh"), str(archive)], check=True, timeout=300,
                   env={**os.environ, "KILN_BUILD": _BUILD}, stdout=subprocess.PIPE)
    assert archive.stat().st_size <= 60_000_000
    subprocess.run(["tar", "-xzf", str(archive), "-C", str(folder)], check=True)
    archive.unlink()
    return folder / "kiln"


def test_programs_use_the_bundle_alone(unpacked: pathlib.Path) -> None:
    for program in ("kilnd", "kilnctl"):
        output = subprocess.run([unpacked / "bin" / program, "--version"], check=True, stdout=subprocess.PIPE,
                                text=True)
        assert "0.1.0" in output.stdout
    files = [*(unpacked / "kiln" / "bin").iterdir(), unpacked / "kiln" / "_C.abi3.so"]
    libraries = {line.split(" => ")[1].split(" (")[0] for file in files for line in subprocess.run(
        ["ldd", file], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines() if " => " in line}
    assert any(path.startswith(str(unpacked)) for path in libraries)
    assert not [path for path in libraries if path.startswith(os.path.realpath(_BUILD)) or "not found" in path]
    assert not [path for path in libraries if not path.startswith(str(unpacked)) and "absl" in path]


@pytest.mark.parametrize("imports", ["torch, kiln", "torch"])
def test_compile_from_the_bundle(unpacked: pathlib.Path, place: Place, monkeypatch: pytest.MonkeyPatch,
                                 imports: str) -> None:
    for name in ("KILN_DAEMON", "KILN_BUILD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(unpacked))
    package, daemon, compiles, fallbacks = place.run(_COMPILE.replace("torch, kiln", imports))[0].strip().splitlines()
    assert package.startswith(str(unpacked)) and daemon.startswith(str(unpacked))
    assert (compiles, fallbacks) == ("1", "{}")


@pytest.mark.parametrize("metadata", [True, False])
def test_name_is_found_by_the_metadata_alone(unpacked: pathlib.Path, tmp_path: pathlib.Path, metadata: bool) -> None:
    """By a Python that has no kiln of its own."""
    for part in unpacked.iterdir():
        if metadata or not part.name.endswith(".dist-info"):
            (tmp_path / part.name).symlink_to(part)
    code = ("from importlib.metadata import entry_points\n"
            "print([point.value for point in entry_points(group='torch_dynamo_backends') if point.name == 'kiln'])")
    result = subprocess.run([sys.executable, "-I", "-c",
                             f"import sys; sys.path[:] = [{str(tmp_path)!r}] + [path for path "
                             f"in sys.path if 'site-packages' not in path]\n{code}"], check=True, text=True,
                            stdout=subprocess.PIPE)
    assert result.stdout.strip() == ("['kiln.backend:kiln']" if metadata else "[]")
