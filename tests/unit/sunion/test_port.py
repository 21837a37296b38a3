"""One input partition: its stable prefix, its tentative suffix, and what is overdue when."""

from __future__ import annotations

import pytest

from boreal.model.frames import INFINITY, Boundary, Data, Origin, State
from boreal.query.spec import Hold
from sunion.port import EARLY
from sunion.tape import BEGINNING
from tests.harness import SUnionDriver, batch_of


def suffix_times(one: SUnionDriver) -> list[int]:
    return [int(time) for chunk in one.ports["a"].suffix for time in chunk.times]


def test_tentative_rows_are_taken_beyond_the_highest_t_max_only() -> None:
    one = SUnionDriver("a")
    one.tentative("a", 1, 2)
    assert one.ports["a"].t_max == 10
    one.tentative("a", 5, 15, 16)
    assert suffix_times(one) == [1, 2, 15, 16], "5 lies in a bucket that another replica has already given"
    one.tentative("a", 12)
    assert suffix_times(one) == [1, 2, 15, 16]


def test_an_undo_revokes_tentative_rows_boundary_and_t_max() -> None:
    one = SUnionDriver("a")
    one.boundary("a", 10)
    one.tentative("a", 12)
    one.boundary("a", 20, tentative=True)
    assert one.ports["a"].boundary == 20
    one.undo("a")
    port = one.ports["a"]
    assert (port.boundary, port.suffix, port.t_max, port.suffix_nbytes) == (10, [], BEGINNING, 0)


def test_an_undone_boundary_tells_no_bucket_what_it_counts_from() -> None:
    """R8: else the undone end of a stream would count for all buckets that come after."""
    one = SUnionDriver("a")
    one.boundary("a", 10)
    one.boundary("a", INFINITY, tentative=True)
    one.undo("a")
    one.boundary("a", 20)
    assert [time for time, _ in one.ports["a"].boundaries] == [10, 20]


def test_a_bucket_without_rows_counts_from_when_the_producer_knew_its_end() -> None:
    """A long step of the producer's ends in one boundary; the runs of its rows' ingest tell of the buckets between."""
    one = SUnionDriver("a")
    one.boundary("a", 10, ingest=50)
    rows = Data(one.origin, 0, 0, batch_of([12, 35]), True, ((10, 50), (20, 100), (30, 200), (40, 400)), 40)
    one.ports["a"].take_tentative(rows)
    one.boundary("a", 40, tentative=True, ingest=400)
    assert list(one.ports["a"].boundaries) == [(10, 50), (20, 100), (30, 200), (40, 400), (40, 400)]
    one.rows("a", 12, ingest=600)
    assert list(one.ports["a"].boundaries)[-1] == (40, 400), "a row of a source tells of no bucket's end"


def test_boundaries_that_nothing_releases_are_noted_more_coarsely() -> None:
    """Under `suspend` a failure of hours must not need memory of hours. What a bucket counts from is never later than the
    first boundary past its end (R8), and never earlier than the first of all."""
    one = SUnionDriver("a", "b", failure=Hold.SUSPEND)
    one.ports["a"].tape.most_notes = 8
    for at in range(1, 101):
        one.boundary("a", 10 * at, ingest=at)
    noted = one.ports["a"].boundaries
    assert len(noted) <= 8 and noted[-1] == (1000, 100)
    for end in range(10, 1001, 10):
        assert 1 <= next(ingest for time, ingest in noted if time >= end) <= end // 10


def test_a_stable_boundary_makes_the_suffix_before_it_obsolete() -> None:
    one = SUnionDriver("a")
    one.tentative("a", 1, 2)
    one.tentative("a", 12)
    one.boundary("a", 10)
    assert suffix_times(one) == [12]


def test_tentative_rows_before_the_stable_boundary_are_not_taken() -> None:
    one = SUnionDriver("a")
    one.boundary("a", 10)
    one.tentative("a", 5, 11)
    assert suffix_times(one) == [11]


def test_a_tentative_boundary_never_lowers_what_is_known() -> None:
    one = SUnionDriver("a")
    one.boundary("a", 30)
    one.boundary("a", 20, tentative=True)
    assert one.ports["a"].boundary == 30 and one.ports["a"].suffix_boundary == BEGINNING


def test_stable_arrivals_get_a_grace_and_tentative_ones_none() -> None:
    """R8: a backlog is not overdue at once; tentative rows have been held back already, by whoever sent them."""
    one = SUnionDriver("a", grace=50)
    one.now = 1000
    one.rows("a", 3, ingest=10)
    one.tentative("a", 14, ingest=20)
    assert [arrival[:3] for arrival in one.ports["a"].arrivals] == [(10, 10, 1050), (20, 20, BEGINNING)]
    one.ports["a"].released(10)
    assert [arrival[:3] for arrival in one.ports["a"].arrivals] == [(20, 20, BEGINNING)]


@pytest.mark.parametrize(("pause", "not_before"), [(0, 1050), (30, 1080), (900, 1100)])
def test_the_grace_is_longer_where_the_next_boundary_may_be_late_but_at_most_twice_as_long(pause: int, not_before: int) -> None:
    """R24: rows of a bucket that is not over wait for it, and are not to leave twice meanwhile."""
    one = SUnionDriver("a", grace=50)
    one.ports["a"].take_boundary(Boundary(one.origin, 0, 0, False, 0, 0, pause=pause), 0)
    one.ports["a"].released(0)
    one.now = 1000
    one.rows("a", 3, ingest=10)
    assert [arrival[:3] for arrival in one.ports["a"].arrivals] == [(10, 10, not_before)]
    one.boundary("a", 20, ingest=10)
    assert one.ports["a"].pause_us == 0


@pytest.mark.parametrize(("cause", "due"), [(EARLY, [(20, 10, BEGINNING), (30, 10, 1050)]), ("jfk", [(30, 10, 1050)])])
def test_what_replaces_early_answers_keeps_their_deadline(cause: str, due: list[tuple[int, int, int]]) -> None:
    """R8: it was here before, and is no backlog. After a failure the rest of the backlog comes with it."""
    one = SUnionDriver("a", grace=50)
    one.boundary("a", 0, ingest=0)
    one.tentative("a", 3, 14, ingest=10)
    one.boundary("a", 20, tentative=True, ingest=20)
    one.ports["a"].upstream_cause = cause
    one.undo("a")
    one.ports["a"].released(0)
    one.now = 1000
    one.rows("a", 3, 14, 25, ingest=10)
    assert [arrival[:3] for arrival in one.ports["a"].arrivals] == due


def test_tentative_rows_are_due_by_their_own_ingest_whatever_came_before_them() -> None:
    """R8: what came sooner and counts from later would hold them back, if it stayed before them."""
    one = SUnionDriver("a")
    one.tentative("a", 14, ingest=165)
    one.now = 500
    one.tentative("a", 25, ingest=135)
    assert [arrival[:3] for arrival in one.ports["a"].arrivals] == [(30, 135, BEGINNING)]


@pytest.mark.parametrize(("time", "ingest", "is_leap"), [(500, 450, False), (500, 0, True), (1200, 450, True)])
def test_a_row_of_a_sparse_stream_is_no_leap_where_its_time_has_come(time: int, ingest: int, is_leap: bool) -> None:
    """R8: what passed since the row before it is on no clock ahead."""
    one = SUnionDriver("a")
    one.ports["a"].expect(ahead_us=100, bucket_run_us=10, disorder_us=0)
    one.rows("a", 0, ingest=0)
    one.rows("a", time, ingest=ingest)
    assert one.ports["a"].arrivals[-1].is_leap is is_leap


@pytest.mark.parametrize(("time", "is_leap"), [(380, False), (450, True)])
@pytest.mark.parametrize("tentative", [False, True])
def test_a_row_that_is_ahead_of_a_boundary_by_what_may_be_out_of_order_is_no_leap(
    time: int, is_leap: bool, tentative: bool
) -> None:
    """R8: a stable boundary stands so far behind the rows. A tentative one does not wait for them."""
    one = SUnionDriver("a")
    one.ports["a"].expect(ahead_us=100, bucket_run_us=1, disorder_us=300)
    one.boundary("a", 0, tentative, ingest=0)
    one.rows("a", time, ingest=0)
    assert one.ports["a"].arrivals[-1].is_leap is (is_leap or tentative)


def test_the_first_rows_of_a_stream_may_be_out_of_order() -> None:
    one = SUnionDriver("a")
    one.ports["a"].expect(ahead_us=100, bucket_run_us=1, disorder_us=300)
    one.rows("a", 390, 0, 450, ingest=0)
    assert [arrival.is_leap for arrival in one.ports["a"].arrivals] == [False]
    one.undo("a")
    one.rows("a", 500, ingest=0)
    assert not one.ports["a"].arrivals[-1].is_leap, "what is stable is not undone"


def test_no_bucket_is_overdue_for_what_is_undone() -> None:
    """R8: it is about to come again, or never will. What is stable stays due."""
    one = SUnionDriver("a")
    one.boundary("a", 10, ingest=10)
    one.tentative("a", 12, ingest=20)
    one.tentative("a", 25, ingest=30)
    one.undo("a")
    assert [arrival[:2] for arrival in one.ports["a"].arrivals] == [(10, 10)]
    one.tentative("a", 12, ingest=5)  # takes the stable one along
    one.undo("a")
    assert [arrival[:2] for arrival in one.ports["a"].arrivals] == [(10, 5)]


def test_of_each_bucket_that_is_named_which_its_own_rows_lack() -> None:
    """What upstream lacks by now is no reason to doubt what it gave before."""
    port = SUnionDriver("a").ports["a"]
    for time, missing in ((10, ("b",)), (20, ("b",)), (30, ("b", "c")), (40, ())):
        port.take_boundary(Boundary(Origin("r0", 1), 0, time, True, 0, 0, State.UP_FAILURE, missing=missing, cause="x"), 0)
    assert [port.missing_in(since, since + 10) for since in (0, 10, 20, 30)] == [("b",), ("b",), ("b", "c"), ()]
    assert port.missing_in(10, 30) == ("b", "c")
    assert [port.blamed_through(since) for since in (0, 10, 20, 30, 40)] == [20, 20, 30, None, None]
    port.take_boundary(Boundary(Origin("r0", 1), 0, 20, False, 0, 0), 0)
    assert port.missing_in(0, 20) == ()
    port.revoke(0)
    assert port.missing_in(20, 40) == ()


def test_where_stable_rows_end_and_the_tentative_ones_after_them_lack_an_input_what_is_lacked_changes() -> None:
    """Rows that an upstream gave as stable lack nothing, although they leave late, together with tentative ones."""
    port = SUnionDriver("a").ports["a"]
    port.take_boundary(Boundary(Origin("r0", 1), 0, 30, False, 0, 0), 0)
    port.take_boundary(Boundary(Origin("r0", 1), 0, 50, True, 0, 0, State.UP_FAILURE, missing=("b",), cause="x"), 0)
    assert [port.blamed_through(since) for since in (10, 30)] == [30, None]
    port.revoke(0)
    port.take_boundary(Boundary(Origin("r0", 1), 0, 50, True, 0, 0, cause="early"), 0)
    assert port.blamed_through(10) is None


def test_buckets_that_a_step_has_passed_before_its_rows_are_due_from_when_their_ends_were_known() -> None:
    """R8: a long step's boundary tells of its own end only, as of the end of the stream."""
    one = SUnionDriver("a")
    one.boundary("a", 10, ingest=50)
    rows = Data(one.origin, 0, 0, batch_of([32, 35]), True, ((10, 50), (20, 100), (40, 400)), 40)
    one.ports["a"].take_tentative(rows)
    assert [arrival[:2] for arrival in one.ports["a"].arrivals] == [(10, 50), (20, 100), (40, 400)]


def test_the_end_of_a_stream_is_kept_apart_and_an_undo_takes_a_tentative_one_back() -> None:
    one = SUnionDriver("a")
    one.boundary("a", INFINITY, tentative=True)
    assert one.ports["a"].ended is not None and not one.ports["a"].arrivals
    one.undo("a")
    assert one.ports["a"].ended is None
    one.boundary("a", INFINITY)
    one.undo("a")
    assert one.ports["a"].ended is not None


def test_memory_is_bounded_for_stable_and_tentative_rows() -> None:
    one = SUnionDriver("a")
    for at in range(20):
        one.rows("a", at)
    for at in range(20, 40):
        one.tentative("a", at * 10)
    port = one.ports["a"]
    port.evict(100, 400)
    assert port.tape.nbytes <= 100 and port.suffix_nbytes <= 100
    assert port.suffix_nbytes == sum(chunk.nbytes for chunk in port.suffix)
    assert port.tape.next_id == 20, "what was evicted lies in the log"


def test_each_bucket_of_a_frame_is_overdue_by_its_oldest_row() -> None:
    """R8: the rows of a frame, and of a bucket, may be of several ingests."""
    one = SUnionDriver("a")
    rows = batch_of([5, 8, 15, 25], [0, 1, 2, 3])
    frame = Data(one.origin, 0, 0, rows, True, ((7, 100), (12, 300), (INFINITY, 500)), 30)
    one.ports["a"].take_tentative(frame)
    due = [arrival[:3] for arrival in one.ports["a"].arrivals]
    assert due == [(10, 100, BEGINNING), (20, 300, BEGINNING), (30, 500, BEGINNING)]


def test_tentative_rows_that_a_tentative_boundary_has_passed_are_not_taken() -> None:
    """R23: their bucket was given, as one without them, by the replica that was read before."""
    one = SUnionDriver("a")
    one.boundary("a", 30, tentative=True)
    one.tentative("a", 25, 29)
    assert one.ports["a"].suffix == []
    one.tentative("a", 31)
    assert len(one.ports["a"].suffix) == 1


def test_what_is_known_of_the_replicas_says_what_a_port_lacks() -> None:
    one = SUnionDriver("a")
    port = one.ports["a"]
    port.observe(unreachable=False, is_stable=True)
    assert not (port.unreachable or port.silent or port.failed)
    port.observe(unreachable=False, is_stable=False)
    assert port.failed and not port.silent
    port.observe(unreachable=True, is_stable=True)
    assert port.unreachable and port.silent and port.failed
    one.boundary("a", INFINITY)
    port.observe(unreachable=True, is_stable=False)
    assert port.unreachable and not (port.silent or port.failed), "nothing more was to come"
