"""verify: the first line that differs is found, and a changelog is replayed by its own rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embedded.session import RunOptions, make_session
from embedded.verify import Difference, first_difference, replay_difference, replayed, verify

SOURCES = ("a=generate:50,5,4", "b=generate:50,5,4")


@pytest.mark.parametrize(
    ("left", "right", "found"),
    [
        ([], [], None),
        (["a", "b"], ["a", "b"], None),
        (["a", "b"], ["a", "c"], Difference(2, "b", "c")),
        (["a"], ["a", "b"], Difference(2, None, "b")),
        (["a"], [], Difference(1, "a", None)),
        (["", "b"], ["", "c"], Difference(2, "b", "c")),
    ],
)
def test_first_difference(left: list[str], right: list[str], found: Difference | None) -> None:
    assert first_difference(left, right) == found


def record(seq: int, kind: str, data: str = "", after_seq: int = 0) -> str:
    return json.dumps({"seq": seq, "type": kind, "data": data, "after_seq": after_seq})


def test_an_undo_takes_back_what_follows_its_place() -> None:
    changes = [
        record(1, "stable", "a"),
        record(2, "tentative", "x"),
        record(3, "boundary"),
        record(4, "tentative", "y"),
        record(5, "undo", after_seq=1),
        record(6, "stable", "b"),
        record(7, "rec_done"),
        record(8, "tentative", "z"),
    ]
    assert replayed(changes) == ["a", "b", "z"]
    assert replayed(changes, with_tentative=False) == ["a", "b"]


def test_a_changelog_that_leads_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "changes.jsonl").write_text(record(1, "stable", "a") + "\n" + record(2, "stable", "b") + "\n")
    (tmp_path / "stable.jsonl").write_text('"a"\n"b"\n')
    assert replay_difference(tmp_path) is None
    (tmp_path / "stable.jsonl").write_text('"a"\n"c"\n')
    assert replay_difference(tmp_path) == Difference(2, '"b"', '"c"')


def test_a_cut_changes_nothing_in_the_end(query: Path) -> None:
    verdict = verify(make_session(query, SOURCES, RunOptions(speed="1x", faults=["cut a at 1s for 2s"], seed=1)))
    assert verdict.same and verdict.holds
    assert [run["n_tentative"] > 0 for run in verdict.runs] == [False, True]
    assert verdict.rows == verdict.runs[0]["n_stable"] > 0


def test_what_never_heals_ends_early(query: Path) -> None:
    verdict = verify(make_session(query, SOURCES, RunOptions(speed="1x", faults=["stop a at 1s"], seed=1)))
    assert not verdict.holds and not verdict.is_stable
    assert verdict.replay == {}
    assert verdict.first_difference is not None and verdict.first_difference.right is None
    shown = json.loads(verdict.to_json())["first_difference"]
    assert shown["line"] == verdict.runs[1]["n_stable"] + 1
    assert shown["without_faults"].startswith("{") and shown["with_faults"] is None
