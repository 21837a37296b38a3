"""Tapes and cursors: repeats by id, gaps, consumption by time, eviction and reading again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boreal.model.errors import ProtocolError
from boreal.model.frames import INFINITY
from sunion.tape import BEGINNING, Chunk, Cursor, Tape
from tests.harness import batch_of

NOW = ((INFINITY, 0),)


def tape_of(*frames: tuple[int, list[int]], **options: Any) -> Tape:
    tape = Tape(**options)
    for first_id, times in frames:
        tape.append(first_id, batch_of(times), NOW)
    return tape


def times_of(cursor: Cursor, tape: Tape, since: int, upto: int) -> list[int]:
    pieces = (chunk.between(since, upto) for chunk in cursor.pending(tape, upto))
    return [int(time) for piece in pieces if piece is not None for time in piece[1]]


def test_rows_already_here_are_dropped_by_id() -> None:
    tape = tape_of((0, [1, 2, 3]))
    assert tape.append(0, batch_of([1, 2]), NOW) is None
    chunk = tape.append(1, batch_of([2, 3, 4, 5]), NOW)
    assert chunk is not None and chunk.first_id == 3 and chunk.times.tolist() == [4, 5]
    assert tape.next_id == 5


def test_a_tape_that_begins_late_knows_where_older_rows_begin() -> None:
    tape = Tape()
    tape.begin(40, 100, 7)
    tape.append(40, batch_of([100, 101]), NOW)
    assert [tape.place_of(time) for time in (50, 99, 100, 102)] == [7, 7, 40, 42]
    tape.forget_places(100)
    assert tape.place_of(50) == 40


def test_missing_ids_are_refused() -> None:
    with pytest.raises(ProtocolError, match=r"3\.\.4 are missing"):
        tape_of((0, [1, 2, 3])).append(5, batch_of([9]), NOW)


def test_a_row_before_the_stable_boundary_is_refused() -> None:
    tape = tape_of((0, [1]))
    tape.advance(10)
    with pytest.raises(ProtocolError, match="time 9 after the stable boundary 10"):
        tape.append(1, batch_of([9]), NOW)
    assert tape.append(1, batch_of([10]), NOW) is not None


def test_only_rising_boundaries_count() -> None:
    tape = Tape()
    assert tape.advance(10) and not tape.advance(10) and not tape.advance(5)
    assert tape.boundary == 10


def test_a_chunk_out_of_order_gives_its_rows_in_id_order() -> None:
    chunk = Chunk.of(0, batch_of([5, 1, 7, 3]), BEGINNING, NOW)
    assert (chunk.low, chunk.high, chunk.ordered) == (1, 7, False)
    piece = chunk.between(2, 7)
    assert piece is not None and piece[1].tolist() == [5, 3]
    assert piece[0].column("v").to_pylist() == [0, 3]
    assert chunk.between(8, 20) is None


def test_a_fork_and_its_origin_move_apart() -> None:
    tape = tape_of((0, [1, 2]), (2, [3]))
    base = Cursor(0)
    live = base.fork()
    live.consume(tape, 3)
    assert times_of(live, tape, 3, 10) == [3]
    assert times_of(base, tape, 0, 10) == [1, 2, 3]


def test_what_was_evicted_must_be_read_again_and_then_joins_the_cache() -> None:
    tape = tape_of((0, [1, 2]), (2, [3]), (3, [4]))
    tape.advance(10)
    tape.evict(tape.nbytes // 2 - 1)
    cursor = Cursor(0)
    assert tape.cached_from == 3 and not cursor.is_joined(tape)
    assert times_of(cursor, tape, 0, 10) == [], "what it cannot see wholly it does not show"
    assert cursor.boundary(tape) == BEGINNING
    cursor.take_replayed(tape, 0, batch_of([1, 2]), NOW)
    cursor.replay_boundary = 3
    assert cursor.boundary(tape) == 3
    cursor.take_replayed(tape, 2, batch_of([3, 4]), NOW)
    assert cursor.is_joined(tape) and cursor.boundary(tape) == 10
    assert times_of(cursor, tape, 0, 10) == [1, 2, 3, 4], "the cached row 3 is not given twice"


def test_a_replay_that_skips_ids_is_refused() -> None:
    tape = tape_of((0, [1, 2, 3]))
    tape.evict(0)
    cursor = Cursor(0)
    with pytest.raises(ProtocolError, match=r"0\.\.0"):
        cursor.take_replayed(tape, 1, batch_of([2]), NOW)


def test_the_place_of_a_time_is_the_first_chunk_that_reaches_it() -> None:
    tape = tape_of((0, [1, 5]), (2, [6, 9]), (4, [12]))
    assert [tape.place_of(time) for time in (0, 5, 6, 10, 13)] == [0, 0, 2, 4, 5]
    tape.forget_places(9)
    assert tape.place_of(9) == 2


@pytest.mark.parametrize("count", [5, 6, 100, 1001])
def test_places_are_bounded_and_no_row_that_is_needed_lies_before_one(count: int) -> None:
    times = [at - 7 * (at % 3) for at in range(count)]
    tape = tape_of(*((at, [time]) for at, time in enumerate(times)), most_notes=5)
    assert len(tape.places) <= 5
    for time in range(count + 1):
        assert all(earlier < time for earlier in times[: tape.place_of(time)])
    assert tape.place_of(count) == count


def test_places_that_were_made_one_do_not_lead_before_what_was_acknowledged() -> None:
    tape = tape_of(*((at, [at]) for at in range(4)), most_notes=4)
    assert tape.place_of(3) == 3
    tape.acknowledge(3)
    tape.append(4, batch_of([4]), NOW)
    tape.append(5, batch_of([5]), NOW)
    assert [high for high, _ in tape.places] == [1, 3, 4, 5]
    assert [tape.place_of(time) for time in (3, 4, 6)] == [3, 4, 6]


def test_no_rows_lie_between_a_time_and_an_earlier_one() -> None:
    """A correction may have come further than the next tentative step will: its stable boundary is then beyond the step."""
    for times in ([25, 35, 45], [35, 25, 45]):
        chunk = Chunk.of(0, batch_of(times), BEGINNING, NOW)
        assert chunk.between(40, 30) is None and chunk.between(30, 30) is None
        piece = chunk.between(30, 40)
        assert piece is not None and piece[1].tolist() == [35]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=5), max_size=8),
    st.lists(st.integers(0, 70), max_size=6),
    st.integers(0, 400),
)
def test_cursors_consume_by_time_what_a_sorted_list_would(
    frames: list[list[int]], cuts: list[int], keep_bytes: int
) -> None:
    """However rows lie in chunks, and whatever was dropped behind the cursor, steps give each row once, by its time."""
    tape, first = Tape(), 0
    rows: list[tuple[int, int]] = []
    for times in frames:
        tape.append(first, batch_of(times, range(first, first + len(times))), NOW)
        rows += [(time, first + at) for at, time in enumerate(times)]
        first += len(times)
    cursor, since = Cursor(0), BEGINNING
    for upto in sorted(cuts):
        given_rows = []
        for chunk in cursor.pending(tape, upto):
            piece = chunk.between(since, upto)
            if piece is not None:
                given_rows += list(zip(piece[1].tolist(), piece[0].column("v").to_pylist(), strict=True))
        assert given_rows == [row for row in rows if since <= row[0] < upto]
        cursor.consume(tape, upto)
        tape.drop_before(cursor.next_id)
        since = upto
