"""The spool: what was posted while Kafka was out of reach, in order, through crashes and within its bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.source.spool import Spool, SpoolFull

LIMIT = 50 << 20
Open = Callable[..., Spool]


@pytest.fixture
def open_spool(tmp_path: Path) -> Iterator[Open]:
    """Opens the one spool of the test, each time as a new process would; the last process did not close it."""
    opened: list[Spool] = []

    def open_it(limit: int = LIMIT) -> Spool:
        opened.append(Spool(tmp_path, limit))
        return opened[-1]

    yield open_it
    for spool in opened:
        spool.close()


def add(spool: Spool, *records: str) -> int:
    first = spool.numbers(len(records))
    spool.add(first, [record.encode() for record in records])
    return first


def texts(spool: Spool) -> list[str]:
    """What is left, taken out."""
    found = []
    while chunks := spool.head():
        found += [record.decode() for chunk in chunks for record in chunk.records]
        spool.drained(chunks)
    return found


def test_records_come_out_in_the_order_in_which_they_went_in(open_spool: Open) -> None:
    spool = open_spool()
    assert spool.is_empty and spool.head() == []
    first = add(spool, "a", "ü")
    assert add(spool, "c") == first + 2
    assert spool.spooled_bytes == 4
    assert [(chunk.first, chunk.records) for chunk in spool.head()] == [(first, [b"a", "ü".encode()]), (first + 2, [b"c"])]
    assert texts(spool) == ["a", "ü", "c"] and spool.is_empty


def test_what_is_left_outlasts_the_process_and_numbers_only_grow(open_spool: Open) -> None:
    spool = open_spool()
    for number in range(100):
        last = add(spool, f"old{number}")
    spool.drained(spool.head()[:40])
    again = open_spool()
    assert not again.is_empty
    assert add(again, "new") > last
    assert texts(again) == [*(f"old{number}" for number in range(40, 100)), "new"]
    assert open_spool().is_empty


def test_many_drains_leave_the_rest_within_reach(open_spool: Open) -> None:
    """Every drain and every life leave marks of their own between the records."""
    for life in range(20):
        spool = open_spool()
        for number in range(20):
            add(spool, f"{life}.{number}")
            spool.drained(spool.head())
        add(spool, f"{life}.left")
        assert texts(open_spool()) == [f"{life}.left"]


def test_a_full_spool_refuses_and_takes_again_once_drained(open_spool: Open) -> None:
    spool = open_spool(20 << 20)
    record = "x" * (1 << 20)
    kept = 0
    with pytest.raises(SpoolFull, match="the spool is full"):
        for _ in range(30):
            add(spool, record)
            kept += 1
    assert 15 <= kept < 20
    assert len(texts(spool)) == kept
    add(spool, record)
    assert texts(spool) == [record]


def test_a_record_that_was_half_written_is_forgotten(open_spool: Open, tmp_path: Path) -> None:
    """A crash in mid-write: whoever posted it got no answer."""
    spool = open_spool()
    add(spool, "a")
    add(spool, "b")
    (segment,) = tmp_path.glob("*.log")
    segment.write_bytes(segment.read_bytes()[:-5])
    assert texts(open_spool()) == ["a"]
