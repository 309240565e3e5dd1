"""Each name stands for one thing: no two sources of the product have one name, so that it leads to one file. And each
thing has the field's name: what has one there has no other here."""
import collections
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
FOLDERS = ("cache", "client", "compiler", "server")
# What tools look for by that name, and each program's start.
EVERYWHERE = {"__init__.py", "main.cc"}
SUFFIXES = (".cc", ".h", ".py", ".proto")
# What was said instead of the field's word.
WORDS = {"anew": "again", "by points": "channels-last", "dear": "expensive", "made again": "rematerialised",
         "point convolution": "1×1 convolution", "truth value": "boolean", "under way": "in flight",
         "what is no number": "NaN"}


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


def other_words(root: pathlib.Path) -> list[str]:
    """Where a word of WORDS stands in sources, contracts or documents, and the field's."""
    found = []
    for path in [*sorted(root.glob("*.md")), *(path for folder in (*FOLDERS, "docs", "proto")
                                               for path in sorted((root / folder).rglob("*")))]:
        if path.suffix not in (*SUFFIXES, ".def", ".md"):
            continue
        text = re.sub(r"\s+(?://|#)?\s*", " ", path.read_text())
        found += [f"{path.relative_to(root)}: {word!r} is {better!r}" for word, better in WORDS.items()
                  if re.search(rf"\b{word}s?\b", text, re.IGNORECASE)]
    return found


def test_words_are_the_fields() -> None:
    assert not other_words(ROOT)


def test_another_word_is_found(tmp_path: pathlib.Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("Reads that are under\nway.")
    assert other_words(tmp_path) == ["docs/a.md: 'under way' is 'in flight'"]
