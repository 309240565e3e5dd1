"""C that a benchmark holds kiln against, compiled where it runs."""
import ctypes
import os
import shutil
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def compile_to(path: str, source: str, *flags: str) -> None:
    """What cc makes of a file of this folder."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise RuntimeError(f"no C compiler (cc) for {source}")
    subprocess.run([compiler, *flags, "-o", path, os.path.join(HERE, source)], check=True)


def compiled(source: str, *flags: str) -> ctypes.CDLL:
    """The library made of a file of this folder, loaded."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "bare.so")
        compile_to(path, source, *flags, "-shared", "-fPIC")
        return ctypes.CDLL(path)


def loaded(name: str) -> ctypes.CDLL:
    """The library of that name, such as one of torch's own, that this process has already."""
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if f"/{name}" in line}
    if not paths:
        raise RuntimeError(f"{name} is not loaded")
    return ctypes.CDLL(sorted(paths)[0])
