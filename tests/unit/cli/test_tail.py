"""What `boreal tail` shows of a changelog."""

from __future__ import annotations

from typing import Any

import pytest

from boreal_cli.tail import TailPrinter


def record(kind: str, seq: int, **fields: Any) -> dict[str, Any]:
    return {"v": 1, "type": kind, "seq": seq, **fields}


def test_tentative_rows_name_what_is_missing_and_are_shown_again_when_they_are_taken_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tail = TailPrinter()
    for each in (
        record("stable", 1, data={"n": 1}),
        record("tentative", 2, data={"n": 2}, missing_inputs=["jfk"]),
        record("tentative", 3, data={"n": 3}, missing_inputs=[]),
        record("undo", 4, after_seq=1),
        record("stable", 5, data={"n": 20}),
        record("tentative", 6, data={"n": 4}, missing_inputs=["lga", "ewr"]),
        record("undo", 7, after_seq=5),
        record("rec_done", 8),
        record("boundary", 9, tentative=False, through="2013-01-01T00:00:00Z"),
    ):
        tail.show(each)
    assert capsys.readouterr().out.splitlines() == [
        'stable    {"n": 1}',
        'tentative {"n": 2}  without jfk',
        'tentative {"n": 3}',
        'undone    {"n": 2}',
        'undone    {"n": 3}',
        'stable    {"n": 20}',
        'tentative {"n": 4}  without lga, ewr',
        'undone    {"n": 4}',
        "rec_done  the correction is complete",
        "boundary  stable: no later result has a time before 2013-01-01T00:00:00Z",
    ]
