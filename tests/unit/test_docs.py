"""What the documentation shows is true: its commands are known to the command line, its queries and programs are valid; what
needs no servers also runs, with less input."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer.core
import typer.main

from boreal.model.documents import parse_document
from boreal.model.errors import UserError
from boreal.query.planner import plan
from boreal.query.spec import Query, load_query
from boreal_cli import main
from boreal_cli.app import app
from boreal_cli.reference import EXAMPLE
from embedded.faults import parse_fault

ROOT = Path(__file__).parents[2]
PAGES = [path for pattern in ("*.md", "docs/*.md", "examples/*/README.md") for path in sorted(ROOT.glob(pattern))]
TARGETS = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)

RUN_HERE = ("run", "compare", "verify", "simulate")
LITTLE = "generate:5,12,3"
"""Rows for a stream whose file the reader is to have: 5 a second, for 12 seconds."""
CONNECTS = ("CorrectedStream(", "bootstrap", "ApiClient(")
"""What a program that needs a stack has in it."""


@dataclass(frozen=True)
class Block:
    """A block of code of a page. language: '' where the page does not say."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> Iterator[list[str]]:
        for line in self.text.replace("\\\n", " ").splitlines():
            line = line.strip().removeprefix("$ ")
            if line.startswith(("boreal ", "make ", "python ")):
                yield shlex.split(line, comments=True)

    @property
    def query(self) -> dict[str, Any] | None:
        """A query, or a part of one, as a mapping; `{...}` stands for some columns."""
        known = {field.alias or name for name, field in Query.model_fields.items()}
        if self.language not in ("", "yaml") or self.text.partition(":")[0].strip("# \n") not in known:
            return None
        found = parse_document(self.place, self.text.replace("{...}", "{n: int}"))
        return found if isinstance(found, dict) and known.issuperset(found) else None

    @property
    def is_program(self) -> bool:
        return self.language == "python" or (self.language == "" and self.text.startswith(("from ", "import ")))


def blocks(page: Path) -> Iterator[Block]:
    """Between fences, or indented by four spaces after an empty line."""
    language: str | None = None
    held: list[str] = []
    before, begin = "", 0
    for number, line in enumerate([*page.read_text(encoding="utf-8").splitlines(), "END"], 1):
        fence = re.match(r"\s*```(\w*)", line)
        is_indented = line.startswith("    ") and (not before or (held and language is None))
        if language is not None:
            if fence:
                yield Block(page, begin, language, "\n".join(held) + "\n")
                language, held = None, []
            else:
                held.append(line)
        elif is_indented or (held and not line):
            begin = begin if held else number
            held.append(line[4:])
        else:
            if held:
                yield Block(page, begin, "", "\n".join(held).rstrip() + "\n")
                held = []
            if fence:
                language, begin = fence[1], number
        before = line


BLOCKS = [block for page in PAGES for block in blocks(page)]
COMMANDS = [
    pytest.param(block, command, id=f"{block.place} {' '.join(command[:3])}") for block in BLOCKS for command in block.commands
]
QUERIES = [pytest.param(block.query, id=block.place) for block in BLOCKS if block.query is not None]
PROGRAMS = [pytest.param(block.text, id=block.place) for block in BLOCKS if block.is_program]


def parsed(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, dict[str, Any]]:
    """The exit status, the command and its parameters, of a command line that is read and not obeyed."""
    seen: list[tuple[str, dict[str, Any]]] = []
    with monkeypatch.context() as patched:
        patched.setattr(typer.core.TyperCommand, "invoke", lambda self, context: seen.append((self.name, context.params)))
        status = main(arguments)
    return (status, *seen[0]) if seen else (status, "", {})


@pytest.mark.parametrize(("block", "command"), COMMANDS)
def test_each_command_is_known(block: Block, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    match command:
        case ["boreal", *arguments]:
            status, _, parameters = parsed(arguments, monkeypatch)
            assert status == 0
            for fault in parameters.get("fault") or ():
                parse_fault(fault)
        case ["make", target, *_]:
            assert target in TARGETS
        case ["python", "-m", module, *_]:
            assert find_spec(module) is not None
        case ["python", path, *_]:
            assert path == "-c" or (ROOT / path).is_file()


@cache
def commands() -> Any:
    return typer.main.get_command(app)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_in_the_text_are_known(page: Path) -> None:
    """Of each `boreal ...` between words; a place-holder there need not be a value that the command takes."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for span in re.findall(r"`boreal ([a-z][^`]*)`", text):
        command: Any = commands()
        for word in span.split():
            if not getattr(command, "commands", None):
                break
            assert word in command.commands, span
            command = command.commands[word]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {*re.findall(r"(?<![\w-])--[a-z-]+", span)} <= known | {"--help"}, span


def test_the_example_of_each_command_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(examples(typer.main.get_command(app)))
    assert len(found) > 15
    for example in found:
        assert parsed(shlex.split(example)[1:], monkeypatch)[0] == 0, example


def examples(command: Any) -> Iterator[str]:
    """Those at the end of each command's help."""
    if command.epilog:
        yield command.epilog.removeprefix("Example: ")
    for each in getattr(command, "commands", {}).values():
        yield from examples(each)


@pytest.mark.parametrize("part", QUERIES)
def test_each_query_is_valid(part: dict[str, Any]) -> None:
    parsed = parse_document("example", EXAMPLE)
    assert isinstance(parsed, dict)
    example = dict(parsed)
    if "streams" in part:
        del example["operators"]
        example["output"] = next(iter(part["streams"]))
    if "operators" in part:
        example["output"] = list(part["operators"])[-1]
    plan(load_query({**example, **part}))


@pytest.mark.parametrize("text", PROGRAMS)
def test_each_program_works(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that needs a stack, or is a part of one, is compiled, and finds what it imports."""
    tree = ast.parse(text)
    if any(word in text for word in CONNECTS) or not isinstance(tree.body[0], ast.Import | ast.ImportFrom):
        tree.body = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    monkeypatch.chdir(tmp_path)
    exec(compile(tree, "docs", "exec"), {})


@pytest.mark.parametrize(
    ("block", "command"),
    [case for case in COMMANDS if case.values[1][0] == "boreal" and case.values[1][1] in RUN_HERE],  # type: ignore[index]
)
def test_each_run_without_servers_works(
    block: Block, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, name, given = parsed(command[1:], monkeypatch)
    if name == "simulate":
        assert main(["simulate", "--seeds", "1", "--seed", str(given["seed"])]) == 0
        return
    query = query_file(block, given["query"], tmp_path)
    if query is None:
        assert name == "verify" and not given["source"], "a query that is neither in the repository nor on the page"
        return
    arguments = [name, str(query), "--speed", "1x"]
    for source in given["source"] or ():
        arguments += ["--source", f"{source.partition('=')[0]}={LITTLE}"]
    faults = given["fault"] or ()
    for fault in faults:
        arguments += ["--fault", fault]
    if name == "compare":
        arguments += ["--modes", "overlay_redo", "--policies", "process/process"]
    if name != "verify":
        arguments += ["--out", str(tmp_path / "out")]
    never_heals = any(parse_fault(fault).for_us is None for fault in faults)
    assert main(arguments) == (1 if never_heals else 0), capsys.readouterr().err


def query_file(block: Block, named: Path, scratch: Path) -> Path | None:
    """The file in the repository, or else the whole query that the page shows."""
    if (ROOT / named).is_file():
        return ROOT / named
    shown = [other for other in blocks(block.page) if other.query and {"name", "streams", "output"} <= other.query.keys()]
    if not shown or named.suffix == "":
        return None
    path = scratch / named.name
    path.write_text(shown[0].text)
    return path


BREAKS = re.compile(r"\.(kill|frozen|dead|cut|freeze|send_signal)\(|SIGKILL|SIGSTOP")
"""What a test that breaks something has in it."""


def test_the_page_of_faults_has_a_row_for_each_scenario_and_names_each_test_that_breaks_something() -> None:
    page = (ROOT / "docs" / "faults.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE)
    files = {path.stem: path.read_text() for room in ("stack", "spark") for path in (ROOT / "tests" / room).glob("test_*.py")}
    told = re.findall(r'report\(f?"([^"{]+)', "".join(files.values()))
    told += [name.replace("_", " ") for name in re.findall(r"@_?scenario\ndef _?(\w+)", files["test_faults"])]
    assert len(told) > 20 and not [name for name in told if not any(row.startswith(name) for row in rows)]
    stack = [path.stem for path in (ROOT / "tests" / "stack").glob("test_*.py")]
    assert not [name for name in stack if BREAKS.search(files[name]) and name not in page]


def test_what_is_wrong_would_be_seen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert parsed(["run", "q.yaml", "--out", "o", "--fautl", "cut a at 1s for 1s"], monkeypatch)[0] == 2
    assert parsed(["query", "aply", "q.yaml"], monkeypatch)[0] == 2
    status, name, given = parsed(["run", "q.yaml", "--out", "o", "--source", "a=a.csv"], monkeypatch)
    assert (status, name, given["source"]) == (0, "run", ["a=a.csv"])
    with pytest.raises(UserError):
        test_each_query_is_valid({"delay_treshold": "3s"})
    shown = [(block.language, block.text) for block in blocks(ROOT / "README.md")]
    assert any(language == "" and text.startswith("make demo") for language, text in shown)
    assert COMMANDS and QUERIES and PROGRAMS
