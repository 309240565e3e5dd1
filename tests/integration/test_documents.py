"""What the documents say can be done: their blocks run, their links lead somewhere, their tables name what is there."""
import os
import re
import subprocess

import pytest

import documents
import kiln
from daemons import Place
from kiln.environment import daemon_binary

PATHS = documents.paths()
PROGRAMS = {name: os.path.join(os.path.dirname(daemon_binary()), name) for name in ("kilnd", "kilnctl")}
BLOCKS = [(path, block) for path in PATHS for block in documents.blocks(documents.read(path))]
LISTED = [(path, block) for path, block in BLOCKS if block.language == "sh" and documents.is_listed(block)]
RUN = sorted({path for path, block in BLOCKS
              if block.language == "python" or (block.language == "sh" and not documents.is_listed(block))})

README_WORDS_MAX, FOLDER_README_LINES_MAX = 900, 60


def run(text: str, place: Place) -> str | None:
    """Runs the Python of a document as one script, then each shell block; returns what a command that failed said."""
    place.run(documents.script(text) or documents.PRELUDE + "torch.compile(model, backend='kiln')(*inputs)",
              KILN_FALLBACK="error")
    for block in documents.blocks(text):
        if block.language != "sh" or documents.is_listed(block):
            continue
        done = documents.run_shell(block, place, PROGRAMS)
        if done.returncode != 0:
            return f"line {block.line}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return None


@pytest.mark.parametrize("path", RUN)
def test_the_blocks_run(path: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.root)  # of files that blocks write
    assert run(documents.read(path), place) is None


@pytest.mark.parametrize("language, code, reason", [
    ("python", "torch.compile(modle, backend='kiln')", "name 'modle' is not defined"),
    ("sh", "kilnctl statsu\nkilnctl status", 'line 4: exit code 2\n.*"statsu" is no command'),
])
def test_a_block_that_is_broken_fails(language: str, code: str, reason: str, place: Place,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.root)
    try:
        said = run(f"# A document\n\n```{language}\n{code}\n```\n", place)
    except AssertionError as error:
        said = str(error)
    assert re.search(reason, said or "", re.DOTALL), said


def test_there_are_blocks_of_every_kind() -> None:
    assert {block.language for _, block in BLOCKS} == set(documents.LANGUAGES)
    assert "README.md" in RUN and "docs/using.md" in RUN and "docs/operating.md" in RUN
    assert [path for path, _ in LISTED].count("README.md") == 1


def test_commands_that_are_not_run_are_there() -> None:
    assert [(path, fault) for path, block in LISTED for fault in documents.listed_faults(block)] == []


@pytest.mark.parametrize("code, fault", [
    ("tests/runn.sh", "tests/runn.sh is no program"),
    ("tests/run.sh --fats  # minutes", "tests/run.sh does not know --fats"),
])
def test_a_command_that_is_not_there_is_named(code: str, fault: str) -> None:
    block, = documents.blocks(f"```sh\n{code}\n```\n")
    assert documents.is_listed(block) and documents.listed_faults(block) == [fault]


def dead_links(path: str, text: str) -> list[str]:
    found = []
    for link in documents.links(text):
        if link.startswith(("http:", "https:")):
            continue
        name, _, anchor = link.partition("#")
        target = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
        there = (documents.ROOT / target).exists()
        if there and anchor:
            there = anchor in documents.anchors(text if target == path else documents.read(target))
        if not there:
            found.append(f"{path}: {link}")
    return found


def test_links_lead_somewhere() -> None:
    assert [link for path in PATHS for link in dead_links(path, documents.read(path))] == []
    assert dead_links("README.md", "[a](docs/nothing.md) [b](docs/limits.md#nothing)") != []


def test_lengths() -> None:
    assert len(documents.read("README.md").split()) <= README_WORDS_MAX
    assert [path for path in PATHS if re.fullmatch(r"(?!docs/).+/README\.md", path)
            and documents.read(path).count("\n") > FOLDER_README_LINES_MAX] == []


def missing_steps(text: str) -> list[tuple[str, str, str]]:
    """Rows of the walk whose function is not defined or called in the file that they name."""
    rows = re.findall(r"^\| (\d+) \| `([^`]+)`.* \| `([^`]+)` \|$", text, re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, len(rows) + 1))
    assert len({name for _, name, _ in rows}) == len(rows), "each function once"
    found = []
    for number, name, path in rows:
        file = documents.ROOT / path
        source = file.read_text(encoding="utf-8") if file.exists() else ""
        if name not in source or not re.search(rf"\b{re.escape(name.rpartition('::')[2])}\(", source):
            found.append((number, name, path))
    return found


def test_the_walk_names_functions_that_are_there() -> None:
    text = documents.read("docs/architecture.md")
    assert missing_steps(text) == []
    assert missing_steps(text.replace("`PlanGraph`", "`PlanTheGraph`")) != []


def config_fields() -> set[str]:
    """Of all messages of kilnd's configuration."""
    config = documents.read("proto/kiln/v1/config.proto")
    return set(re.findall(r"^  (?:repeated |optional )?\w+ (\w+) = \d+;", config, re.MULTILINE))


def settings() -> dict[str, set[str]]:
    """What can be set or read, by the document that has to name it."""
    def sources(folder: str, ending: str) -> str:
        return "".join(path.read_text(encoding="utf-8") for path in (documents.ROOT / folder).glob(f"*{ending}"))

    client = sources("client/python/kiln", ".py") + sources("client/runtime", ".cc")
    using = set(re.findall(r'"(KILN_[A-Z_]+)"', client)) | set(kiln.stats())
    operating = config_fields()
    operating |= set(re.findall(r"^  ([A-Z_]+) = [1-9]", documents.read("proto/kiln/v1/config.proto"), re.MULTILINE))
    for program in PROGRAMS.values():
        text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
        operating |= set(re.findall(r"^  (--[a-z-]+(?= )|[a-z]+(?=  ))", text, re.MULTILINE))
    return {"docs/using.md": using, "docs/operating.md": operating}


def test_what_can_be_set_is_in_its_document() -> None:
    wanted = settings()
    assert len(wanted["docs/using.md"]) > 30 and len(wanted["docs/operating.md"]) > 30
    for path, names in wanted.items():
        assert unnamed(names, documents.read(path)) == set()


def unnamed(names: set[str], text: str) -> set[str]:
    """Those that the text does not have as a word."""
    return {name for name in names if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)}


def library_reasons() -> set[str]:
    """Why nodes are library calls, as lowering says it; "…" is what an operator adds."""
    found = set()
    for path in sorted((documents.ROOT / "compiler/lower").glob("*.cc")):
        source = path.read_text(encoding="utf-8")
        named = dict(re.findall(r'\b(k\w+)\[\] = "([^"]+)"', source))
        for call in re.findall(r"\bCallLibrary\((.*?)\);", source, re.DOTALL):
            found |= set(re.findall(r'"([^"]+)"', call))
            found |= {named[name] for name in re.findall(r"\w+", call) if name in named}
        found |= set(re.findall(r'\{Op::k\w+, "([^"]+)", (?:true|false)\}', source))
    return {re.sub(r"(?<=: ).+$|(?<= )$", "…", reason) for reason in found}


def test_reasons_of_library_calls_are_in_their_documents() -> None:
    reasons = library_reasons()
    assert {"gemm", "closed list: …", "scatter_reduce …", "complex numbers"} <= reasons
    assert {reason for reason in reasons if f"`{reason}`" not in documents.read("docs/using.md")} == set()
    rows = re.findall(r"^\| `([^`]+)` \|", documents.read("docs/limits.md"), re.MULTILINE)
    assert {reason.replace(": …", "") for reason in reasons} <= set(rows)


def test_the_example_has_every_field() -> None:
    safe = {name for name in config_fields() if not name.startswith("dangerously_")}
    assert len(safe) > 70
    assert unnamed(safe, documents.read("deploy/config.example.textproto")) == set()


def test_metrics_are_in_their_table() -> None:
    made = re.findall(r'to\.(Counter|Gauge|ByTenant)\("(\w+)"', documents.read("server/rpc/metrics.cc"))
    assert len(made) > 50
    ends = {"Counter": ("", "_total"), "Gauge": ("", ""), "ByTenant": ("tenant_", "_total")}
    names = [f"kiln_{ends[kind][0]}{name}{ends[kind][1]}" for kind, name in made]
    rows = re.findall(r"^\| `(kiln_\w+)` \| [^|]+ \| [^|]+ \|$", documents.read("docs/operating.md"), re.MULTILINE)
    assert sorted(rows) == sorted(names)
