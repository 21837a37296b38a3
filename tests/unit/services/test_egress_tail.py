"""What a new life of the egress learns from the end of q.out (R28)."""

from __future__ import annotations

import json
from dataclasses import dataclass

from boreal.model.frames import Anchor
from formats.changelog import ChangelogPlace
from formats.client_headers import ANCHOR, ID, INCARNATION, PLACE, encode_anchor, encode_place, number
from formats.frame_records import Headers
from services.egress.tail import _Fold

ANCHOR_AT = Anchor(100, 50, (("out/0", 2),), (("in/0", 1),))


@dataclass(frozen=True)
class Record:
    offset: int
    value: bytes
    headers: Headers


def record(offset: int, kind: str, incarnation: int = 1, id_: int | None = None, place: ChangelogPlace | None = None) -> Record:
    """A record of q.out, whose seq is one more than its offset: a stable row of this id, or a boundary with this place."""
    fields = {"type": kind, "seq": offset + 1, "stable_seq": 0, "epoch": 0, "event_time": "1970-01-01T00:00:00.000007Z"}
    headers: Headers = [(INCARNATION, number(incarnation))]
    if id_ is not None:
        headers.append((ID, number(id_)))
    if place is not None:
        headers += [(ANCHOR, encode_anchor(ANCHOR_AT)), (PLACE, encode_place(place))]
    return Record(offset, json.dumps(fields).encode(), headers)


def folded(*records: Record, needed: int | None = None) -> _Fold:
    fold = _Fold(None, needed)
    for one in records:
        fold.take(one)  # type: ignore[arg-type]
    return fold


def test_what_a_dead_life_wrote_after_its_successor_is_void() -> None:
    """R25: its row is not the last one, nor its boundary the place to go on from."""
    right, wrong = ChangelogPlace(seq=2, next_stable_id=2), ChangelogPlace(seq=9, next_stable_id=9)
    fold = folded(
        record(0, "stable", incarnation=2, id_=1),
        record(1, "boundary", incarnation=2, place=right),
        record(2, "stable", incarnation=1, id_=8),
        record(3, "boundary", incarnation=1, place=wrong),
    )
    assert (fold.incarnation, fold.place, fold.next_id) == (2, right, 2)


def test_rows_after_the_last_boundary_count_for_where_the_next_life_goes_on() -> None:
    fold = folded(
        record(1, "boundary", place=ChangelogPlace(seq=2, next_stable_id=2, n_stable=2)),
        record(2, "stable", id_=2),
        record(3, "tentative"),
        record(4, "tentative"),
    )
    assert fold.place == ChangelogPlace(seq=5, next_stable_id=3, outstanding=2, n_stable=3, n_tentative=2)
    assert (fold.anchor, fold.written_to) == (ANCHOR_AT, 7)


def test_the_first_row_that_q_stable_lacks_is_found() -> None:
    """It has those before id 3; a life that goes on reads q.out from the record after those."""
    rows = [record(offset, "stable", id_=offset) for offset in range(6)]
    assert folded(*rows, needed=3).lacking_from == 3
    assert folded(*rows, needed=6).lacking_from == 6
    assert folded(*rows, needed=None).lacking_from == 0
