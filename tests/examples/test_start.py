"""docs/start.md shows what its commands print: its query is the example's, and its run repeats byte for byte."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from boreal.query.spec import load_query
from boreal_cli import main
from examples.sensors.show import lines_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^```text\n(.*?)^```$", PAGE, re.M | re.S)


def command(name: str) -> list[str]:
    """The arguments of the page's first `boreal NAME`."""
    found = re.search(rf"^    boreal ({name} (?:[^\n]*\\\n)*[^\n]*)$", PAGE, re.M)
    assert found is not None
    return shlex.split(found[1].replace("\\\n", " "))


def stripped(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory that has the examples, in which a terminal has 80 columns."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def test_the_query_is_the_example_s():
    path = ROOT / "examples" / "sensors" / "load.yaml"
    assert all(f"    {line}" in PAGE for line in path.read_text(encoding="utf-8").splitlines())
    assert load_query(path).name == "load"


def test_the_run_is_as_shown(here: Path, capsys: pytest.CaptureFixture[str]):
    assert main(command("run")) == 0
    assert stripped(capsys.readouterr().out) == stripped(SHOWN[0])
    assert lines_of(here / "out" / "load" / "changes.jsonl") == stripped(SHOWN[1])


def test_nothing_final_depends_on_what_failed(here: Path, capsys: pytest.CaptureFixture[str]):
    assert main(command("verify")) == 0
    assert stripped(capsys.readouterr().out) == stripped(SHOWN[2])


def test_a_cut_of_a_second_leaves_no_trace(here: Path):
    arguments = [part.replace("for 6s", "for 1s") for part in command("run")]
    assert main(arguments) == 0
    assert not [line for line in lines_of(here / "out" / "load" / "changes.jsonl") if "tentative" in line]
