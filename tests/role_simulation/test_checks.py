"""What the roles' simulator takes for right in q.out where two egresses begin at one moment."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka import TopicPartition

from formats.client_headers import INCARNATION
from role_simulation.broker import Broker
from role_simulation.checks import _faults_of_out

OUT = TopicPartition("q.out", 0)


def faults(*records: tuple[int, int, str]) -> list[str]:
    """Of records with these incarnations, numbers and types, none of them a row."""

    def made(incarnation: int, seq: int, kind: str) -> Any:
        value = json.dumps({"seq": seq, "type": kind, "after_seq": 0})
        return SimpleNamespace(headers=[(INCARNATION, b"%d" % incarnation)], value=value.encode())

    broker = SimpleNamespace(committed=lambda _: [made(*record) for record in records])
    return list(_faults_of_out(cast(Broker, broker), OUT, []))


BEFORE = [(1, 1, "boundary"), (1, 2, "boundary"), (1, 3, "boundary")]


@pytest.mark.parametrize("seqs", [(4, 3), (3, 4), (4, 4), (2, 4)])
def test_of_two_that_begin_at_one_moment_one_writes_its_first_record_only(seqs: tuple[int, int]) -> None:
    first, second = seqs
    assert faults(*BEFORE, (2, first, "undo"), (2, second, "undo"), (2, max(seqs) + 1, "boundary")) == []


def test_the_other_one_may_write_its_first_record_late() -> None:
    assert faults(*BEFORE, (2, 2, "undo"), (2, 3, "boundary"), (2, 4, "undo"), (2, 4, "boundary"), (3, 5, "undo")) == []


@pytest.mark.parametrize(
    "records",
    [
        [(2, 5, "undo")],
        [(2, 2, "undo"), (2, 5, "undo")],
        [(2, 2, "undo"), (2, 4, "boundary")],
        [(2, 2, "undo"), (2, 3, "boundary"), (2, 5, "undo")],
        [(1, 5, "boundary")],
    ],
)
def test_a_number_that_is_left_out_is_wrong(records: list[tuple[int, int, str]]) -> None:
    assert len(faults(*BEFORE, *records)) == 1
