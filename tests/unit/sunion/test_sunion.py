"""SUnion by hand: order, deadlines, the three policies, marks, rollbacks and corrections. Buckets of 10, alpha*X 1000."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boreal.model.frames import INFINITY, Boundary, ingest_at
from boreal.query.spec import Hold
from sunion.steps import Step
from sunion.sunion import Heal
from tests.harness import SUnionDriver, told


def failed(failure: Hold = Hold.PROCESS, stabilization: Hold = Hold.PROCESS, **settings_: int) -> SUnionDriver:
    """Two ports; b falls silent after 10, a goes on. At 1000 the first tentative bucket is due."""
    one = SUnionDriver("a", "b", failure=failure, stabilization=stabilization, **settings_)
    one.rows("a", 1)
    one.rows("b", 2)
    one.boundaries(10)
    assert one.at(0) == [("stable", [(1, 0), (2, 0)], 10)]
    one.silence("b")
    one.rows("a", 11, ingest=0)
    one.boundary("a", 20, ingest=0)
    return one


# Order


def test_rows_of_equal_time_go_by_port_then_id() -> None:
    one = SUnionDriver("a", "b")
    one.rows("b", 5, 5, v=[10, 11])
    one.rows("a", 5, 7, 5, v=[1, 2, 3])
    one.boundaries(10)
    assert one.at(0) == [("stable", [(5, 1), (5, 3), (5, 10), (5, 11), (7, 2)], 10)]


def test_one_step_covers_all_buckets_that_are_stable() -> None:
    one = SUnionDriver("a", "b")
    one.rows("a", 1, 25, 31)
    one.boundary("a", 40)
    one.boundary("b", 39)
    assert one.at(0) == [("stable", [(1, 0), (25, 1)], 30)]


def test_an_end_of_all_streams_closes_everything() -> None:
    one = SUnionDriver("a", "b")
    one.rows("a", 5)
    one.boundaries(INFINITY)
    assert one.at(0) == [("stable", [(5, 0)], INFINITY)]
    assert one.at(10_000) == [] and one.sunion.next_deadline() is None


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 9), max_size=4), st.booleans()), max_size=25),
    st.integers(1, 40),
    st.integers(1, 1_000),
)
def test_stable_rows_do_not_depend_on_how_the_streams_were_cut_and_interleaved(
    arrivals: list[tuple[str, list[int], bool]], step_rows: int, step_bytes: int
) -> None:
    """Against a dumb version: sort everything by (time, port, id)."""
    one = SUnionDriver("a", "b", "c", step_rows=step_rows, step_bytes=step_bytes)
    clock = dict.fromkeys("abc", 0)
    rows: list[tuple[int, str, int]] = []
    out = []
    for name, steps, looks in arrivals:
        times = []
        for step in steps:
            times.append(clock[name] + step)
        first = one.ports[name].tape.next_id
        if times:
            one.rows(name, *times)
            rows += [(time, name, first + at) for at, time in enumerate(times)]
        clock[name] += 9
        one.boundary(name, clock[name])
        if looks:
            out += one.at(0)
    one.boundaries(INFINITY)
    out += one.at(0)
    assert [row for kind, given_rows, _ in out for row in given_rows] == [(time, number) for time, _, number in sorted(rows)]
    assert all(kind == "stable" for kind, _, _ in out)


def test_a_step_is_bounded_over_all_ports_together() -> None:
    """No call may take long: about step_rows rows leave at once, be they of one port or of many."""
    names = [f"p{number}" for number in range(8)]
    one = SUnionDriver(*names, step_rows=40)
    for name in names:
        for bucket in range(20):
            one.rows(name, *[bucket * 10] * 5)
        one.boundary(name, 200)
    sizes = [len(rows) for _, rows, _ in one.at(0)]
    assert sum(sizes) == 800
    assert max(sizes) <= 40 + 40, "at most a bucket more than the bound"


@pytest.mark.parametrize("orderly", [True, False])
def test_a_step_is_bounded_by_the_bytes_of_its_rows_too_also_within_a_frame(orderly: bool) -> None:
    """A row takes 16 bytes here. Rows may be wide, and a step for a host in another process is a message."""
    one = SUnionDriver("a", "b", step_bytes=1_600)
    times = list(range(1_000))
    for name in "ab":
        one.rows(name, *(times if orderly else times[::-1]))
        one.boundary(name, 1_000)
    steps = one.at(0)
    assert [row for _, rows, _ in steps for row in rows] == sorted(row for _, rows, _ in steps for row in rows)
    assert sum(len(rows) for _, rows, _ in steps) == 2_000
    assert all(50 <= len(rows) <= 120 for _, rows, _ in steps[:-1]), "about as many as fit, and a bucket more"


def test_what_is_overdue_leaves_in_bounded_steps_too() -> None:
    one = failed(step_bytes=1_600)
    for bucket in range(2, 40):
        one.tentative("a", *[bucket * 10] * 10, ingest=0)
    one.boundary("a", 400, tentative=True, ingest=0)
    mark, *steps = one.at(1000)
    assert mark == ("mark", 1)
    assert sum(len(rows) for _, rows, _ in steps) == 381
    assert all(len(rows) <= 60 for _, rows, _ in steps) and len(steps) > 5


# Deadlines


def test_nothing_leaves_before_alpha_x_and_the_mark_comes_with_the_first_tentative_step() -> None:
    one = failed()
    assert one.sunion.next_deadline() == 1000
    assert one.at(999) == []
    assert one.at(1000) == [("mark", 1), ("tentative", [(11, 1)], 20)]


def test_a_short_failure_leaves_no_trace() -> None:
    one = failed()
    assert one.at(900) == []
    one.silence("b", False)
    one.rows("b", 12)
    one.boundary("b", 20)
    assert one.at(950) == [("stable", [(11, 1), (12, 1)], 20)]
    assert one.sunion.healed(950, one.sunion.base.position) is None and one.sunion.live is None


def test_a_bucket_counts_from_its_oldest_row_or_the_first_boundary_past_its_end() -> None:
    """R8, and the ingest time that travels on: the next SUnion counts from the same moment."""
    one = SUnionDriver("a", "b")
    one.boundaries(0)
    assert one.at(0) == [("stable", [], 0)]
    one.boundary("b", 9, ingest=100)
    one.rows("a", 3, ingest=500)
    one.boundary("b", 20, ingest=200)
    assert one.at(1199) == [] and one.sunion.next_deadline() == 1200, "at 200 b had shown that the bucket was over"
    one.boundary("a", 20, ingest=700)
    [step] = one.items(1199)
    assert isinstance(step, Step)
    assert ingest_at(step.ingest, 3) == 200


def test_the_grace_keeps_a_backlog_from_being_overdue_at_once() -> None:
    one = SUnionDriver("a", "b", grace=100)
    one.now = 5000
    one.rows("a", 1, ingest=0)
    one.boundary("a", 10, ingest=0)
    assert one.at(5050) == [] and one.sunion.next_deadline() == 5100
    assert told(one.items(5100))[0] == ("mark", 1)


def test_no_deadline_holds_while_catching_up() -> None:
    """R12."""
    one = failed()
    one.overdue_counts = False
    assert one.at(9000) == []


def test_a_new_alpha_x_holds_at_once_for_what_is_held_back() -> None:
    """R9."""
    one = failed()
    assert one.at(500) == []
    one.sunion.alpha_x_us = 400
    assert one.sunion.next_deadline() == 400
    assert one.at(500)[0] == ("mark", 1)


# Policies (R11)


def go_on(one: SUnionDriver) -> None:
    """The first bucket has left; another comes at 1100."""
    one.at(1000)
    one.now = 1100
    one.rows("a", 21, ingest=1100)
    one.boundary("a", 30, ingest=1100)


def test_process_releases_a_bucket_as_soon_as_all_ports_that_are_there_have_passed_it() -> None:
    one = failed()
    go_on(one)
    assert one.at(1100) == [("tentative", [(21, 2)], 30)]


def test_delay_holds_each_bucket_to_its_deadline() -> None:
    one = failed(Hold.DELAY)
    go_on(one)
    assert one.at(2099) == []
    assert one.at(2100) == [("tentative", [(21, 2)], 30)]


def test_suspend_releases_nothing() -> None:
    one = failed(Hold.SUSPEND)
    go_on(one)
    assert one.at(1_000_000) == []


def test_a_missing_port_rejoins_at_the_first_bucket_not_yet_released() -> None:
    one = failed()
    go_on(one)
    one.at(1100)
    one.now = 1200
    one.silence("b", False)
    one.tentative("b", 15, 31)
    one.boundary("b", 40, tentative=True)
    one.rows("a", 32)
    one.boundary("a", 40)
    assert one.at(1200) == [("tentative", [(31, 2), (32, 3)], 40)], "15 came too late, and is kept for the redo"


def test_tentative_rows_of_an_upstream_make_a_bucket_tentative_at_the_deadline() -> None:
    one = SUnionDriver("a", "b")
    one.boundaries(10)
    one.at(0)
    one.rows("a", 11)
    one.boundary("a", 20)
    one.tentative("b", 12)
    one.boundary("b", 20, tentative=True)
    assert one.at(999) == []
    assert one.at(1000) == [("mark", 1), ("tentative", [(11, 0), (12, 0)], 20)]


def test_when_all_that_are_left_have_ended_open_windows_are_closed_tentatively() -> None:
    one = failed(Hold.DELAY)
    one.boundary("a", INFINITY, ingest=100)
    assert one.at(1000) == [("mark", 1), ("tentative", [(11, 1)], 20)]
    assert one.at(1100) == [("tentative", [], INFINITY)]


def test_a_tentative_step_names_what_it_lacks_and_why() -> None:
    one = failed()
    _, step = one.items(1000)
    assert isinstance(step, Step) and (step.missing, step.cause) == (("b",), "t-1")


def test_a_tentative_step_names_every_input_that_it_lacks_and_all_that_its_upstream_lacks() -> None:
    """And the cause is that of the failure which began it, wherever that is."""
    one = SUnionDriver("a", "b", "c", "d")
    one.boundaries(10)
    assert told(one.items(0))[-1][0] == "stable"
    for name in ("b", "d"):
        one.silence(name)
    one.rows("a", 12)
    one.boundary("a", 20)
    one.ports["c"].take_boundary(Boundary(one.origin, 0, 20, True, 0, 0, missing=("x", "y"), cause="up-7"), 0)
    one.ports["c"].failed = True
    _, step = one.items(1000)
    assert isinstance(step, Step) and step.tentative
    assert step.cause == "up-7"
    assert sorted(step.missing) == ["b", "d", "x", "y"]


def test_where_one_stream_has_ended_and_another_goes_on_no_window_is_closed_before_its_time() -> None:
    one = SUnionDriver("a", "b")
    one.boundaries(10)
    one.boundary("a", INFINITY)
    one.rows("b", 12)
    one.boundary("b", 20)
    assert one.at(1) == [("stable", [(12, 0)], 20)]
    assert one.at(5000) == [] and one.sunion.live is None


def test_rows_that_are_read_again_from_the_log_are_not_answered_without() -> None:
    """They are not missing: their port is there."""
    one = failed(memory=10)
    one.ports["a"].evict(10, -1)
    assert [at for _, at, _ in one.sunion.reads()] == [0]
    assert one.at(1000) == []
    one.ports["a"].unreachable = True
    assert one.at(1001) == [("mark", 1), ("tentative", [], 20)]


def test_before_a_correction_only_what_is_overdue_is_answered() -> None:
    """What else is there will be stable in a moment."""
    one = failed()
    assert one.at(1000)[-1] == ("tentative", [(11, 1)], 20)
    one.sunion.eager_from = 1500
    one.rows("a", 21)
    one.boundary("a", 30)
    assert one.at(1499) == []
    assert one.at(1500) == [("tentative", [(21, 2)], 30)]


def test_what_a_correction_has_ahead_of_its_boundary_is_not_answered_beside_its_tentative_version() -> None:
    """R17: the stable rows are another replica's, and count up to the stable boundary; the live one's rows after it."""
    one = SUnionDriver("a")
    one.boundaries(10)
    one.rows("a", 11, v=[7], ingest=0)
    one.tentative("a", 11, v=[7], ingest=0)
    one.boundary("a", 20, tentative=True)
    assert one.at(1000)[-1] == ("tentative", [(11, 7)], 20)


def test_stable_rows_ahead_of_their_boundary_are_not_answered_beside_another_replicas_version_of_them() -> None:
    """R23: the reader switched between the stable rows of a bucket and their boundary. The other replica gives this bucket as
    tentative rows. Stable rows before those count: the replica in view gave them itself."""
    one = SUnionDriver("a")
    one.boundaries(10)
    one.rows("a", 11, 23, v=[7, 8], ingest=0)
    one.tentative("a", 23, v=[8], ingest=0)
    one.boundary("a", 30, tentative=True)
    assert one.at(1000)[-1] == ("tentative", [(11, 7), (23, 8)], 30)


# Healing (R16)


def heal(one: SUnionDriver, now: int = 2000) -> None:
    one.now = now
    one.silence("b", False)
    one.rows("b", 12, ingest=0)
    one.boundary("b", 30, ingest=now)
    one.boundary("a", 30, ingest=now)


def test_it_has_healed_only_once_the_stable_boundaries_have_passed_all_that_was_tentative() -> None:
    one = failed()
    one.at(1000)
    assert one.sunion.healed(1500, one.sunion.base.position) is None
    one.silence("b", False)
    one.boundary("b", 19)
    assert one.sunion.healed(1600, one.sunion.base.position) is None
    one.boundary("b", 20)
    assert one.sunion.healed(1700, one.sunion.base.position) is Heal.FULL


def test_windows_that_were_closed_beyond_all_input_need_not_end_to_be_corrected() -> None:
    """R16: the horizon is where the input has come, though open windows were flushed to the end of time."""
    one = failed(Hold.DELAY)
    one.boundary("a", INFINITY, ingest=100)
    assert one.at(1100)[-1][2] == INFINITY
    one.silence("b", False)
    one.rows("b", 12, ingest=0)
    one.boundary("b", 20)
    assert one.sunion.healed(1200, one.sunion.base.position) is Heal.FULL


def test_a_flush_of_windows_without_a_row_after_the_mark_has_not_healed_before_more_is_stable() -> None:
    """R16: the horizon is the mark itself, which S has reached since before the failure."""
    one = SUnionDriver("a", "b", failure=Hold.DELAY)
    one.rows("b", 2)
    one.boundary("b", 10)
    one.boundary("a", INFINITY, ingest=0)
    assert one.at(0) == [("stable", [(2, 0)], 10)]
    one.silence("b")
    assert one.at(1000) == [("mark", 1), ("tentative", [], INFINITY)]
    assert one.sunion.healed(1100, one.sunion.base.position) is None
    one.silence("b", False)
    one.boundary("b", 20)
    assert one.sunion.healed(1200, one.sunion.base.position) is Heal.FULL


def test_it_has_not_healed_while_rows_to_be_redone_lie_in_a_log_out_of_reach() -> None:
    one = failed(memory=10)
    one.at(1000)
    heal(one)
    one.sunion.trim(one.sunion.base.position)
    one.ports["a"].unreachable = True
    assert one.sunion.healed(2000, one.sunion.base.position) is None
    one.ports["a"].unreachable = False
    assert one.sunion.healed(2000, one.sunion.base.position) is Heal.FULL


def test_a_rollback_hands_on_the_same_buckets_again_stable_then_says_so() -> None:
    one = failed()
    one.at(1000)
    heal(one)
    assert one.sunion.healed(2000, one.sunion.base.position) is Heal.FULL
    one.sunion.roll_back(one.now, 10, keep_live=False)
    assert one.at(2000) == [("stable", [(11, 1), (12, 1)], 30), ("redone", 1)]
    assert one.sunion.live is None and one.sunion.healed(2000, one.sunion.base.position) is None


def test_a_host_that_lost_its_state_is_given_older_rows_again_muted() -> None:
    one = failed()
    one.at(1000)
    heal(one)
    one.sunion.roll_back(one.now, 0, keep_live=False)
    assert one.at(2000) == [
        ("muted", [(1, 0), (2, 0)], 10),
        ("stable", [(11, 1), (12, 1)], 30),
        ("redone", 1),
    ]


def test_with_the_live_branch_kept_new_rows_go_on_beside_the_correction() -> None:
    """R21."""
    one = failed(step_rows=1)
    one.at(1000)
    heal(one)
    one.rows("a", 41, ingest=2000)
    one.boundary("a", 50, ingest=2000)
    one.silence("b")
    one.sunion.roll_back(one.now, 10, keep_live=True)
    items = one.at(2000)
    assert ("tentative", [(41, 2)], 50) in items
    assert items[-1] == ("redone", 1)
    assert [item for item in items if item[0] == "stable"][-1][-1] == 30


def test_suspend_in_stabilization_holds_new_rows_until_the_correction_is_complete() -> None:
    one = failed(stabilization=Hold.SUSPEND)
    one.at(1000)
    heal(one)
    one.rows("a", 31, ingest=0)
    one.boundary("a", 40, ingest=0)
    one.sunion.roll_back(one.now, 10, keep_live=True)
    items = one.at(5000)
    first_tentative = next((at for at, item in enumerate(items) if item[0] == "tentative"), len(items))
    assert items.index(("redone", 1)) < first_tentative


def test_an_old_mark_is_healed_in_part_when_stable_input_goes_on() -> None:
    """R16, PREFIX: rolling failures must not starve stable output."""
    one = failed(stable_lag_max=5000)
    go_on(one)
    one.at(1100)
    one.silence("b", False)
    one.boundary("b", 20)
    assert one.sunion.healed(6000, one.sunion.base.position) is None, "not yet 5000 since the mark at 1000"
    assert one.sunion.healed(6001, one.sunion.base.position) is Heal.PREFIX
    one.sunion.roll_back(one.now, 10, keep_live=False)
    items = one.at(6001)
    assert items[:2] == [("stable", [(11, 1)], 20), ("redone", 1)]
    assert items[2:] == [("mark", 2), ("tentative", [(21, 2)], 30)], "the rest, already given once, is tentative again"


def test_a_new_failure_after_the_correction_makes_a_new_mark_where_it_ended() -> None:
    one = failed()
    one.at(1000)
    heal(one)
    one.sunion.roll_back(one.now, 10, keep_live=False)
    one.at(2000)
    one.silence("b")
    one.rows("a", 31, ingest=2000)
    one.boundary("a", 40, ingest=2000)
    assert one.at(3000) == [("mark", 2), ("tentative", [(31, 2)], 40)]
    assert one.sunion.base.position == 30


def corrected_late(*times: int) -> SUnionDriver:
    """A failure corrected at 2000 through 30, b being gone again; a's row 31 became overdue at 1900, unseen. More rows of a
    are due at 2030."""
    one = failed(Hold.DELAY, grace=100)
    one.at(1000)
    one.now = 1010
    one.rows("a", 31, ingest=900)
    one.boundary("a", 40, ingest=900)
    if times:
        one.rows("a", *times, ingest=1030)
        one.boundary("a", 50, ingest=1030)
    heal(one)
    one.silence("b")
    one.sunion.roll_back(one.now, 10, keep_live=False)
    assert one.at(2000) == [("stable", [(11, 1), (12, 1)], 30), ("redone", 1)]
    return one


def test_what_became_overdue_in_the_midst_of_a_redo_is_given_a_moment_to_be_stable() -> None:
    one = corrected_late()
    assert one.sunion.next_deadline() == 2100
    assert one.at(2099) == []
    assert one.at(2100) == [("mark", 2), ("tentative", [(31, 2)], 40)]


def test_a_deadline_soon_after_a_redo_is_met_like_any_other() -> None:
    """R8."""
    one = corrected_late(41)
    assert one.sunion.next_deadline() == 2030
    assert one.at(2029) == []
    assert one.at(2030) == [("mark", 2), ("tentative", [(31, 2), (41, 3)], 50)]


def test_what_was_redone_beside_a_live_branch_holds_nothing_back_afterwards() -> None:
    """R8: the grace of stable rows that were handed on already is not that of the tentative ones after them."""
    one = SUnionDriver("a", failure=Hold.DELAY, stabilization=Hold.DELAY, grace=100)
    one.tentative("a", 1)
    one.boundary("a", 10, tentative=True)
    assert one.at(1000) == [("mark", 1), ("tentative", [(1, 0)], 10)]
    one.now = 2000
    one.undo("a")
    one.rows("a", 1, 11)
    one.boundary("a", 20)
    one.sunion.roll_back(one.now, -10, keep_live=True)
    assert one.at(2000)[-2:] == [("stable", [(1, 0), (11, 1)], 20), ("redone", 1)]
    one.tentative("a", 21, ingest=0)
    one.boundary("a", 30, tentative=True, ingest=0)
    assert one.at(2001) == [("mark", 2), ("tentative", [(21, 2)], 30)]


def test_each_bucket_of_a_long_stable_frame_is_due_by_its_own_ingest() -> None:
    """R8: as after a correction, where all that it made is in one frame."""
    one = SUnionDriver("a", "b", failure=Hold.DELAY)
    one.boundaries(10)
    one.at(0)
    one.now = 500
    one.rows("a", 11, 35, ingests=((20, 0), (INFINITY, 400)))
    assert one.at(1000)[-1] == ("tentative", [(11, 0)], 20)
    assert one.at(1399) == []
    assert one.at(1400)[-1] == ("tentative", [(35, 1)], 40)


def test_what_all_producers_have_undone_is_not_due_again_before_it_comes_again() -> None:
    """R8: an empty tentative step in its place would be undone as soon as the producers' corrections move on."""
    one = SUnionDriver("a", "b", failure=Hold.DELAY, stabilization=Hold.DELAY, grace=100)
    one.boundaries(10)
    one.at(0)
    one.tentative("a", 11, 31)
    one.tentative("b", 12, 32)
    assert one.at(1000)[-1][0] == "tentative"
    one.now = 2000
    one.undo("a")
    one.undo("b")
    one.sunion.roll_back(one.now, 10, keep_live=False)
    assert one.at(2000) == [("redone", 1)]
    one.boundaries(20)
    assert one.at(2050) == [("stable", [], 20)]
    assert one.at(2500) == []


def test_what_a_producer_gives_again_after_an_undo_waits_for_the_other_ports() -> None:
    """R8: a suffix that comes again in one frame is due bucket by bucket, and the first one is delayed after the redo."""
    one = SUnionDriver("a", "b", failure=Hold.DELAY, stabilization=Hold.DELAY, grace=100)
    one.boundaries(10)
    one.at(0)
    one.tentative("a", 11)
    one.tentative("b", 12)
    assert one.at(1000) == [("mark", 1), ("tentative", [(11, 0), (12, 0)], 20)]
    one.now = 2000
    one.undo("a")
    one.undo("b")
    one.sunion.roll_back(one.now, 10, keep_live=False)
    assert one.at(2000) == [("redone", 1)]
    one.tentative("a", 11, 21, ingests=((20, 0), (INFINITY, 1060)))
    assert one.at(2001) == []
    one.tentative("b", 12, 22, ingests=((20, 0), (INFINITY, 1060)))
    assert one.at(2059) == [] and one.sunion.next_deadline() == 2060
    assert one.at(2060) == [("mark", 2), ("tentative", [(11, 0), (12, 0), (21, 1), (22, 1)], 30)]


def test_a_bucket_of_a_long_frame_is_due_by_its_own_ingest() -> None:
    """R8: what leaves with an earlier bucket leaves without the rows of other ports that come in time."""
    one = SUnionDriver("a", "b")
    one.boundaries(10)
    one.at(0)
    one.tentative("a", 11, 21, 25, ingests=((20, 0), (24, 300), (INFINITY, 400)))
    assert one.at(1000) == [("mark", 1), ("tentative", [(11, 0)], 20)]
    assert one.at(1299) == [] and one.at(1300) == [("tentative", [(21, 1), (25, 2)], 30)]


def test_a_port_that_returns_after_an_undo_is_waited_for() -> None:
    """R8: a deadline between an UNDO and what follows it must not pass the rows of the port."""
    one = SUnionDriver("a", "b", grace=30, x=1000)
    one.boundaries(10)
    one.at(0)
    one.tentative("b", 12)
    one.boundary("b", 20, tentative=True)
    one.tentative("a", 11)
    one.now = 990
    one.undo("b")
    assert one.at(1019) == [] and one.sunion.next_deadline() == 1020
    one.tentative("b", 12, ingest=0)
    assert one.at(1019) == []
    one.boundary("b", 20, tentative=True, ingest=0)
    assert one.at(1019) == [("mark", 1), ("tentative", [(11, 0), (12, 0)], 20)]


def test_a_port_that_does_not_return_after_an_undo_is_waited_for_no_longer_than_a_part_of_x() -> None:
    """R8, R9: a twentieth of X from the deadline at most, however long the producer takes; not at all if it is silent."""
    for grace, silent, until in ((30, False, 1020), (200, False, 1050), (200, True, 1000)):
        one = SUnionDriver("a", "b", grace=grace, x=1000)
        one.boundaries(10)
        one.at(0)
        one.boundary("b", 20, tentative=True)
        one.tentative("a", 11, ingest=0)
        one.now = 990
        one.undo("b")
        one.silence("b", silent)
        assert one.at(until - 1) == []
        assert one.at(until) == [("mark", 1), ("tentative", [(11, 0)], 20)]


def test_evicted_rows_are_asked_for_again_from_the_log() -> None:
    """A failure of hours must not need memory of hours."""
    one = failed(memory=10)
    one.at(1000)
    one.sunion.trim(one.sunion.base.position)
    heal(one)
    one.sunion.trim(one.sunion.base.position)
    one.sunion.roll_back(one.now, 10, keep_live=False)
    asked = list(one.sunion.reads())
    assert asked and all(not is_live for is_live, _, _ in asked)
    assert one.at(2000) == [], "not caught up: rows are still to be read"
    ports = {at for _, at, _ in asked}
    for at, name in enumerate(one.names):
        if at in ports:
            cursor, tape = one.sunion.base.cursors[at], one.ports[name].tape
            first = cursor.replayed_to
            times = {"a": [1, 11], "b": [2, 12]}[name][first:]
            data = one._data(first, times, None, 0, False)
            cursor.take_replayed(tape, first, data.batch, data.ingest)
    assert one.at(2000) == [("stable", [(11, 1), (12, 1)], 30), ("redone", 1)]


@pytest.mark.parametrize("hold", list(Hold))
def test_stable_output_is_the_same_whatever_the_policy(hold: Hold) -> None:
    one = failed(hold, hold)
    one.at(1500)
    heal(one)
    if one.sunion.healed(2000, one.sunion.base.position):
        one.sunion.roll_back(one.now, 10, keep_live=False)
    assert [item for item in one.at(2000) if item[0] == "stable"] == [("stable", [(11, 1), (12, 1)], 30)]


# Early answers


def early() -> SUnionDriver:
    """Nothing has failed, but b is behind a. At 1000 a's row is answered early."""
    one = SUnionDriver("a", "b")
    one.boundaries(10)
    one.at(0)
    one.rows("a", 11)
    one.boundary("a", 20)
    assert one.at(1000) == [("mark", 1), ("tentative", [(11, 0)], 20)] and one.sunion.is_early
    return one


@pytest.mark.parametrize(("rows", "is_corrected"), [(4, False), (5, True)])
def test_early_answers_are_corrected_at_once_if_far_more_rows_have_come_since(rows: int, is_corrected: bool) -> None:
    """Those would leave early, too, and be undone with them. Else the answers stay for alpha*X."""
    one = early()
    one.now = 1100
    one.rows("a", *range(21, 20 + rows))
    one.boundaries(30)
    assert one.sunion.healed(1100, 10) is (Heal.FULL if is_corrected else None)
    assert one.sunion.healed(2000, 10) is Heal.FULL


def test_new_rows_behind_an_early_answer_are_not_left_to_its_correction() -> None:
    """R14: nobody has spoken for them. The live view is given up after half of alpha*X, and they are due at their deadline, if
    they are not stable by then."""
    one = early()
    one.now = 1100
    one.rows("b", 15)
    one.at(1100)
    assert one.sunion.healed(1599, 10) is None
    assert one.sunion.healed(1600, 10) is Heal.PREFIX
    one.sunion.roll_back(one.now, 10, keep_live=False)
    assert [item for item in one.at(2099) if item[0] == "tentative"] == []
    assert [item for item in one.at(2100) if item[0] == "tentative"] == [("tentative", [(11, 0), (15, 0)], 20)]


@pytest.mark.parametrize(("before", "is_new"), [(5, True), (15, False)])
def test_rows_that_were_under_way_when_an_early_answer_passed_them_are_new(before: int, is_new: bool) -> None:
    """R14: the answer could not speak for them, since they were not here yet. It speaks for all that is older than a bucket:
    that was missing, and is corrected when it can be."""
    one = early()
    one.sunion.settings = replace(one.sunion.settings, bucket_run_us=10)
    one.now = 1001
    one.rows("b", 15, ingest=1000 - before)
    one.at(1001)
    assert one.sunion.healed(1000 - before + 499, 10) is None
    assert one.sunion.healed(1000 - before + 500, 10) is (Heal.PREFIX if is_new else None)


def test_what_is_answered_again_stays_in_proportion_to_what_was_new() -> None:
    one = early()
    one.now = 1100
    one.rows("b", 15)
    one.at(1100)
    one.sunion._live_rows, one.sunion._fresh_rows = 80_001, 10_000
    assert one.sunion.healed(1600, 10) is None
    one.sunion._live_rows = 80_000
    assert one.sunion.healed(1600, 10) is Heal.PREFIX


@pytest.mark.parametrize("comes_at", [None, 100, 700])
def test_after_a_fixed_time_only_a_port_that_is_still_to_come_is_waited_for(comes_at: int | None) -> None:
    """R9: a complete bucket leaves when the fixed time is over, another when X leaves no more."""
    one = SUnionDriver("a", "b", alpha_x=1000)
    one.sunion.fixed_alpha_x_us = 400
    one.boundaries(10)
    one.at(0)
    one.tentative("a", 15)
    one.boundary("a", 20, tentative=True)
    left = {}
    for now in range(0, 1101, 100):
        if now == comes_at:
            one.now = now
            one.boundary("b", 20, tentative=True)
        items = one.at(now)
        if items:
            left[now] = items
    assert list(left) == [{None: 1000, 100: 400, 700: 700}[comes_at]]
    early = SUnionDriver("a", "b", alpha_x=1000)
    early.sunion.fixed_alpha_x_us = 400
    early.boundaries(10)
    early.tentative("a", 15)
    early.boundary("a", 20, tentative=True)
    early.boundary("b", 20, tentative=True)
    assert early.sunion.next_deadline() == 400


@pytest.mark.parametrize("keep_live", [False, True])
def test_what_came_behind_the_live_view_waits_for_its_own_deadline_once_that_has_ended(keep_live: bool) -> None:
    """R8, R21: a live view that is kept beside the correction ends with it."""
    one = SUnionDriver("a", "b")
    one.boundaries(10)
    one.at(0)
    one.boundary("a", 500)
    assert one.at(1000)[-1] == ("tentative", [], 500)
    one.now = 1100
    one.rows("b", 25)
    one.boundary("b", 20)
    assert one.at(1600) == [] and one.sunion.healed(1600, 10) is Heal.PREFIX
    one.sunion.roll_back(one.now, 10, keep_live)
    assert one.at(1600) == [("stable", [], 20), ("redone", 1)]
    assert one.sunion.next_deadline() == 2100
    assert one.at(2099) == []
    assert one.at(2100) == [("mark", 2), ("tentative", [(25, 0)], 30)]


def test_a_tentative_step_ends_where_what_it_lacks_changes() -> None:
    """Each bucket names what its own rows lack: b was there at first."""
    one = SUnionDriver("a", "b", "c")
    one.boundaries(10)
    one.at(0)
    one.boundary("b", 40, ingest=0)
    one.boundary("a", 60, ingest=0)
    one.silence("c")
    steps = [item for item in one.items(1000) if isinstance(item, Step)]
    assert [(step.upto, step.missing) for step in steps] == [(40, ("c",)), (60, ("b", "c"))]


def test_a_stream_that_is_behind_early_answers_is_not_missing() -> None:
    """R11: another one has ended, but the windows stay open for what is still to come."""
    one = SUnionDriver("a", "b")
    one.boundaries(10)
    one.at(0)
    one.rows("a", 205, ingest=0)
    assert one.at(1000)[-1] == ("tentative", [(205, 0)], 210)
    one.boundary("b", INFINITY, ingest=500)
    assert one.sunion.missing() == () and one.at(1500) == []
    one.silence("a")
    assert one.sunion.missing() == ("a",)
    assert one.at(1501)[-1] == ("tentative", [], INFINITY)


def test_rows_behind_early_answers_leave_at_once_where_rows_are_out_of_order_anyway() -> None:
    """R16: a reader further down may still hold back what was given, and is undone now."""
    one = SUnionDriver("a", "b")
    one.sunion.settings = replace(one.sunion.settings, disorder_us=300)
    one.boundaries(10)
    one.at(0)
    one.boundary("a", 500)
    one.at(1000)
    one.now = 1100
    one.rows("b", 25)
    one.boundary("b", 20)
    one.at(1600)
    one.sunion.roll_back(one.now, 10, False)
    assert one.at(1600) == [("stable", [], 20), ("redone", 1), ("mark", 2), ("tentative", [(25, 0)], 30)]


@pytest.mark.parametrize("threshold_us, again", [(2000, [(25, 0), (105, 0)]), (1500, [(25, 0)])])
def test_what_an_early_correction_undoes_leaves_at_once_while_readers_may_have_held_it_back(
    threshold_us: int, again: list[tuple[int, int]]
) -> None:
    """R16: what came less than X ago may not have been given to clients yet; what came before it was."""
    one = SUnionDriver("a", "b")
    one.sunion.settings = replace(one.sunion.settings, disorder_us=300, threshold_us=threshold_us)
    one.boundaries(10)
    one.at(0)
    one.rows("a", 105)
    one.at(1000)
    one.now = 1100
    one.rows("b", 25)
    one.boundary("b", 20)
    one.at(1600)
    one.sunion.roll_back(one.now, 10, False)
    left = [item for item in one.at(1600) if item[0] == "tentative"]
    assert [row for _, rows, _ in left for row in rows] == again
