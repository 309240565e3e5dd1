"""Each name stands for one thing: no two sources of the product have one name, so that it leads to one file."""
import collections
import pathlib

ROOT = pathlib.Path(__file__).parents[2]
FOLDERS = ("cache", "client", "compiler", "server")
# What tools look for by that name, each program's start, and each tree's limits.
EVERYWHERE = {"__init__.py", "limits.h", "main.cc"}
SUFFIXES = (".cc", ".h", ".py", ".proto")


def same_names(root: pathlib.Path) -> dict[str, list[str]]:
    """{name: places} of the sources that share a name."""
    places = collections.defaultdict(list)
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES and path.name not in EVERYWHERE:
                places[path.name].append(str(path.relative_to(root)))
    return {name: found for name, found in places.items() if len(found) > 1}


def test_no_two_files_have_one_name() -> None:
    assert not same_names(ROOT)


def test_a_second_file_of_one_name_is_found(tmp_path: pathlib.Path) -> None:
    for place in ("compiler/ir/verify.cc", "compiler/lower/verify.cc", "server/main.cc", "client/main.cc"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).touch()
    assert same_names(tmp_path) == {"verify.cc": ["compiler/ir/verify.cc", "compiler/lower/verify.cc"]}
