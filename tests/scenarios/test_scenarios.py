"""Each scenario's file holds the trace that its script gives: after a change of the protocol, `make scenarios`."""

from __future__ import annotations

from pathlib import Path

import pytest

from boreal.model.errors import UserError
from simulation.mutants import mutated
from tests.scenarios.script import FOLDER, read_script
from tests.scenarios.story import PAGE, SEPARATOR, files, illustrated, played

SCRIPT = "query: counts\nrows: {a: every 100ms until 1s, b: every 100ms until 1s}\n"


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_a_scenario_gives_its_trace(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert played(text) == text, "if this is what the change is to do, run `make scenarios`"


def test_the_page_shows_the_scenarios_as_they_are() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert illustrated(page) == page, "run `make scenarios`"
    assert page.count(SEPARATOR) == 2
    for path in files():
        assert f"(../tests/scenarios/{path.name})" in page, f"the page does not introduce {path.name}"


def test_a_change_of_the_protocol_is_seen() -> None:
    text = (FOLDER / "14_chain.txt").read_text(encoding="utf-8")
    with mutated("skip_rec_done"), pytest.raises(AssertionError):
        assert played(text) == text


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ("observe: [main.r7]", ValueError),
        ("observe: [client]\nfaults: [cut c at 1s for 1s]", UserError),
        ("observe: [client]\nfaults: [stop a at 1s]", ValueError),
        ("observe: [client]\nrows: {a: sometimes, b: every 100ms until 1s}", ValueError),
    ],
)
def test_a_script_that_cannot_be_told_is_refused(more: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        read_script(SCRIPT + more)
