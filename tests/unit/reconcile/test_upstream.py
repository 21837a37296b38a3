"""Which replica a port reads: the preference table, switching, correcting branches, fenced writers (R10, R12, R17, R23)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import pytest

from boreal.model.frames import Boundary, LogId, Origin, Start, State
from reconcile.events import Follow, Unfollow, Watch
from reconcile.upstream import Candidate, Rank, Upstream

SILENCE = 150
A, B, C = (LogId("all", f"r{number}", 0) for number in range(3))
S, U, Z, R = State.STABLE, State.UP_FAILURE, State.STABILIZATION, State.RECOVERING
DEAD = None


def boundary(state: State, incarnation: int = 1) -> Boundary:
    return Boundary(Origin("r", incarnation), 0, 0, False, 0, 0, state)


def upstream_of(*states: State | None, live: int = 0) -> Upstream:
    """Replicas in these states, heard from 900 to 1000; None: silent since 0."""
    upstream = Upstream([Candidate(log, 0) for log in (A, B, C)[: len(states)]], SILENCE)
    upstream.begin(0, -1)
    for candidate, state in zip(upstream.candidates, states, strict=True):
        candidate.target, candidate.next_offset = 0, 5
        if state is not None:
            for at in (900, 1000):
                upstream.hear(candidate, boundary(state), at)
    upstream.live = upstream.candidates[live]
    return upstream


def test_at_first_one_log_is_followed_and_all_are_watched() -> None:
    upstream = Upstream([Candidate(A, 0), Candidate(B, 0)], SILENCE)
    assert upstream.begin(0, 41) == [Watch(A), Watch(B), Follow(A, 41)]
    assert Upstream([Candidate(A, 0)], SILENCE).begin(0, -1) == [Follow(A, -1)]


# (state of the live replica, state of the other) -> (who is live then, who corrects, whether the suffix is revoked)
TABLE = {
    (S, S): (A, None, False),
    (S, U): (A, None, False),
    (S, Z): (A, None, False),
    (S, R): (A, None, False),
    (S, DEAD): (A, None, False),
    (U, S): (B, None, True),
    (U, U): (A, None, False),
    (U, Z): (A, B, False),
    (U, R): (A, None, False),
    (U, DEAD): (A, None, False),
    (Z, S): (B, None, True),
    (Z, U): (B, A, False),
    (Z, Z): (A, None, False),
    (Z, R): (A, None, False),
    (Z, DEAD): (A, None, False),
    (R, S): (B, None, True),
    (R, U): (B, None, False),
    (R, Z): (B, None, False),
    (R, R): (A, None, False),
    (R, DEAD): (A, None, False),
    (DEAD, S): (B, None, True),
    (DEAD, U): (B, None, False),
    (DEAD, Z): (B, None, False),
    (DEAD, R): (B, None, False),
    (DEAD, DEAD): (A, None, False),
}


def test_the_table_is_whole() -> None:
    assert set(TABLE) == set(product((S, U, Z, R, DEAD), repeat=2))


@pytest.mark.parametrize(("states", "expected"), TABLE.items(), ids=str)
def test_switching(states: tuple[State | None, State | None], expected: tuple[LogId, LogId | None, bool]) -> None:
    """DPC, Upstream failure and Analysis (property 2): stable, then tentative, then correcting replicas; a recovering
    one only where no other answers."""
    upstream = upstream_of(*states)
    revoke, effects = upstream.choose(1000, 7)
    correcting = upstream.correcting.log if upstream.correcting else None
    assert (upstream.live.log, correcting, revoke) == expected
    follows = [effect.log for effect in effects if isinstance(effect, Follow)]
    assert all(effect.after_id == 7 for effect in effects if isinstance(effect, Follow)), "from the last stable id on"
    read = {log for log in (expected[0], expected[1]) if log}
    assert set(follows) == read - {A}
    assert (Unfollow(A) in effects) == (A not in read)


def test_of_equals_the_one_read_already_is_kept_then_the_lower() -> None:
    upstream = upstream_of(S, S, S, live=2)
    assert upstream.choose(1000, 0) == (False, []) and upstream.live.log == C
    upstream = upstream_of(S, S, None, live=2)
    upstream.choose(1000, 0)
    assert upstream.live.log == A


NEAR_SILENCES = 8
NEAR_AT = 1000 + NEAR_SILENCES * SILENCE


def near_second(*states: State | None) -> Upstream:
    """As `upstream_of`; the log of the second replica is the nearest."""
    upstream = upstream_of(*states)
    upstream.near_silences = NEAR_SILENCES
    upstream.set_near(frozenset({B}))
    return upstream


def both_go_on(upstream: Upstream, at: int) -> None:
    for candidate in upstream.candidates:
        upstream.hear(candidate, boundary(S), at)


def test_at_first_the_nearest_log_is_followed() -> None:
    upstream = Upstream([Candidate(A, 0), Candidate(B, 0)], SILENCE)
    upstream.set_near(frozenset({B}))
    assert upstream.begin(0, 41) == [Watch(A), Watch(B), Follow(B, 41)] and upstream.live.log == B


def test_a_nearer_replica_is_read_once_both_have_been_stable_for_long_enough() -> None:
    upstream = near_second(S, S)
    assert upstream.approach(1000, 7, True) == []
    both_go_on(upstream, NEAR_AT - 1)
    assert upstream.approach(NEAR_AT - 1, 7, True) == []
    both_go_on(upstream, NEAR_AT)
    assert upstream.approach(NEAR_AT, 9, True) == [Unfollow(A), Follow(B, 9)]
    assert upstream.live.log == B and upstream.live.target is None
    assert upstream.approach(NEAR_AT, 9, True) == [] and upstream.choose(NEAR_AT, 9) == (False, [])


@pytest.mark.parametrize("states", [(S, U), (S, Z), (S, R), (S, DEAD), (U, U), (U, S)])
def test_a_nearer_replica_is_not_read_unless_both_are_stable(states: tuple[State | None, State | None]) -> None:
    upstream = near_second(*states)
    upstream.nearer_since = 0
    assert upstream.approach(1000, 7, True) == [] and upstream.nearer_since is None


def test_a_nearer_replica_waits_until_nothing_tentative_is_held() -> None:
    """To go over with a tentative suffix would revoke what a client was given, though nothing has failed."""
    upstream = near_second(S, S)
    upstream.nearer_since = 0
    both_go_on(upstream, NEAR_AT)
    assert upstream.approach(NEAR_AT, 7, False) == [] and upstream.nearer_since is None


def test_what_is_no_longer_near_is_not_read_for_it() -> None:
    upstream = near_second(S, S)
    upstream.approach(1000, 7, True)
    upstream.set_near(frozenset())
    both_go_on(upstream, NEAR_AT)
    assert upstream.approach(NEAR_AT, 7, True) == [] and upstream.live.log == A


def test_of_equals_the_nearest_takes_over() -> None:
    upstream = upstream_of(None, S, S)
    upstream.set_near(frozenset({C}))
    upstream.choose(1000, 0)
    assert upstream.live.log == C


def test_time_that_the_reader_was_away_does_not_bring_it_nearer() -> None:
    upstream = near_second(S, S)
    upstream.approach(1000, 7, True)
    upstream.discount(8000)
    assert upstream.nearer_since == 9000


def test_a_correcting_branch_ends_when_its_replica_does() -> None:
    upstream = upstream_of(U, Z)
    upstream.choose(1000, 0)
    upstream.hear(upstream.candidates[1], boundary(U), 1010)
    _, effects = upstream.choose(1010, 3)
    assert upstream.correcting is None and effects == [Unfollow(B)]


def test_a_corrected_replica_that_is_stable_becomes_the_visible_one_without_being_followed_anew() -> None:
    """Its log is followed already: one UNDO, then its stable version (R17)."""
    upstream = upstream_of(U, Z)
    upstream.choose(1000, 0)
    upstream.hear(upstream.candidates[1], boundary(S), 1010)
    revoke, effects = upstream.choose(1010, 3)
    assert revoke and upstream.live.log == B and effects == [Unfollow(A)]


def test_silence_is_judged_by_the_log_itself() -> None:
    """R24: nothing but frames of a replica's own log makes it be heard."""
    upstream = upstream_of(S, S)
    assert upstream.rank(upstream.live, 1000 + SILENCE) is Rank.STABLE
    assert upstream.rank(upstream.live, 1001 + SILENCE) is Rank.DEAD


def test_a_calm_replica_may_be_silent_for_as_long_as_it_has_said() -> None:
    """R24."""
    upstream = upstream_of(S, S)
    pause = 2 * SILENCE
    calm = replace(boundary(S), pause=pause)
    upstream.hear(upstream.live, calm, 1000)
    assert upstream.rank(upstream.live, 1000 + SILENCE + pause) is Rank.STABLE
    assert upstream.rank(upstream.live, 1001 + SILENCE + pause) is Rank.DEAD
    upstream.hear(upstream.live, boundary(S), 1100)
    assert upstream.rank(upstream.live, 1101 + SILENCE) is Rank.DEAD, "it speaks as usual again"


def test_a_calm_replica_does_not_lag_for_what_it_has_left_out() -> None:
    upstream = upstream_of(S, S)
    upstream.slack_us, pause = 50, 2 * SILENCE
    other = upstream.candidates[1]
    upstream.hear(upstream.live, replace(boundary(S), time=10, pause=pause), 1000)
    for at in (1010, 1100, 1200, 1300):
        upstream.hear(other, replace(boundary(S), time=at), at)
    assert upstream.rank(upstream.live, 1010 + 50 + pause) is Rank.STABLE
    assert upstream.rank(upstream.live, 1011 + 50 + pause) is Rank.LAGGING


def test_a_silence_of_all_at_once_is_nobodys_death() -> None:
    """A broker has stalled: its readers heard one replica a moment longer than the other, or hear one a moment sooner again."""
    upstream = upstream_of(S, S)
    other = upstream.candidates[1]
    upstream.hear(other, boundary(S), 1050)
    assert upstream.choose(1000 + SILENCE + 1, 7) == (False, [])
    assert upstream.choose(5000, 7) == (False, [])
    upstream.hear(other, boundary(S), 6000)
    assert upstream.choose(6000, 7) == (False, [])
    upstream.hear(upstream.live, boundary(S), 6010)
    upstream.hear(other, boundary(S), 6100)
    assert upstream.choose(6100, 7) == (False, [])


def test_one_that_stays_silent_when_another_is_back_is_left() -> None:
    upstream = upstream_of(S, S)
    other = upstream.candidates[1]
    for at in (6000, 6050):
        upstream.hear(other, boundary(S), at)
        assert upstream.choose(at, 7) == (False, [])
    upstream.hear(other, boundary(S), 6000 + SILENCE // 2)
    assert upstream.choose(6000 + SILENCE // 2, 7)[0] and upstream.live is other


def test_the_tail_of_a_log_that_was_left_half_read_tells_its_state() -> None:
    """Else a replica that is STABLE again would not be turned to."""
    upstream = upstream_of(U, S)
    left = upstream.candidates[0]
    left.target, left.next_offset = 500, 100
    upstream.choose(1000, 0)
    assert upstream.live.log == B and not upstream.is_read(left)
    upstream.hear_tail(A, boundary(S), 1010)
    assert upstream.rank(left, 1010) is Rank.STABLE


def test_frames_of_a_dead_incarnation_are_ignored() -> None:
    """R25: the zombie's later frames neither count as its sign of life nor change its state."""
    upstream = upstream_of(S, S)
    candidate = upstream.candidates[0]
    assert upstream.hear(candidate, Start(Origin("r", 2), 5), 1100)
    assert candidate.state is State.RECOVERING
    assert not upstream.hear(candidate, boundary(S, incarnation=1), 1200)
    assert (candidate.seen, candidate.state) == (1100, State.RECOVERING)


def test_time_that_the_reader_itself_was_away_is_nobodys_silence() -> None:
    upstream = upstream_of(S, DEAD)
    upstream.discount(8000)
    assert [upstream.rank(candidate, 9000) for candidate in upstream.candidates] == [Rank.STABLE, Rank.DEAD]


def test_after_having_been_away_the_ends_of_the_logs_are_noted_anew() -> None:
    """R12: what has come meanwhile is a backlog."""
    upstream = upstream_of(S, S)
    upstream.forget_targets()
    assert all(candidate.target is None for candidate in upstream.candidates)


def test_a_lone_replica_is_kept_whatever_it_is() -> None:
    upstream = upstream_of(DEAD)
    assert upstream.choose(1000, 0) == (False, [])


def test_a_log_that_lacks_what_we_need_is_left_for_another() -> None:
    """R27: a replica that came back by its partner's anchor has skipped rows."""
    upstream = upstream_of(S, S)
    upstream.live.lacking_until = 2000
    upstream.drop(upstream.live)
    _, effects = upstream.choose(1000, 9)
    assert upstream.live.log == B and effects == [Follow(B, 9)]


def test_rows_that_a_log_has_from_before_its_newest_life_are_taken() -> None:
    """R25: a life ends where the next one begins in the log, and not when we hear of the next one."""
    upstream = upstream_of(S, S)
    left = upstream.candidates[0]
    upstream.live = upstream.candidates[1]
    upstream.hear_tail(A, boundary(S, incarnation=2), 1010)
    upstream.hear(upstream.live, boundary(U), 1010)
    _, effects = upstream.choose(1010, 14)
    assert Follow(A, 14) in effects
    upstream.hear_tail(A, boundary(S, incarnation=2), 1020)  # of a log that is not delivered yet
    assert upstream.hear(left, boundary(S, incarnation=1), 1030)
    assert upstream.hear(left, Start(Origin("r", 2), 5), 1030)
    assert not upstream.hear(left, boundary(S, incarnation=1), 1030)


def test_the_tail_of_a_dead_life_tells_nothing() -> None:
    upstream = upstream_of(S, S)
    upstream.hear_tail(B, boundary(U, incarnation=2), 1010)
    upstream.hear_tail(B, boundary(S, incarnation=1), 1020)
    assert (upstream.candidates[1].state, upstream.candidates[1].seen) == (U, 1010)


def test_logs_that_are_left_before_their_backlog_is_read_are_left_less_and_less_often() -> None:
    """Where all are slow, a reader that followed each turn of the replicas' states would never read anything."""
    upstream = upstream_of(S, S)
    switches, heard = [], {A: U, B: S}
    for now in range(1001, 5000):
        live, other = upstream.live.log, B if upstream.live.log == A else A
        if now % 10 == 0:
            heard = {live: U, other: S}  # whichever is not read looks better
        for log in (A, B):
            upstream.hear_tail(log, boundary(heard[log]), now)
        if any(isinstance(effect, Follow) for effect in upstream.choose(now, 7)[1]):
            switches.append(now)
    pauses = [later - earlier for earlier, later in pairwise(switches)]
    assert switches[0] < 1020
    assert [round(pause / SILENCE) for pause in pauses] == [1, 4, 16]


def test_once_a_backlog_is_read_its_log_is_left_at_once() -> None:
    upstream = upstream_of(U, S)
    assert upstream.choose(1000, 7)[1] == [Unfollow(A), Follow(B, 7)]
    for now, state in ((1001, S), (1002, U)):
        upstream.hear_tail(A, boundary(state), now)
        upstream.hear_tail(B, boundary(U), now)
    upstream.hear_tail(A, boundary(S), 1003)
    assert upstream.choose(1003, 7)[1] == [Unfollow(B), Follow(A, 7)]
    upstream.hear_tail(B, boundary(S), 1004)
    upstream.hear_tail(A, boundary(U), 1004)
    assert upstream.choose(1004, 7)[1] == [], "the former was left for nothing"
    upstream.live.target, upstream.live.next_offset = 9, 9
    upstream.hear(upstream.live, boundary(U), 1005)
    assert upstream.choose(1005, 7)[1] == [Unfollow(A), Follow(B, 7)]


def test_what_a_backlog_says_of_its_writers_state_is_past() -> None:
    """R12."""
    upstream = upstream_of(S, S)
    upstream.live.target = 500
    upstream.hear(upstream.live, boundary(U), 1010)
    assert upstream.live.state is S
    upstream.live.next_offset = 500
    upstream.hear(upstream.live, boundary(U), 1020)
    assert upstream.live.state is U


# What a replica gives.


def reach(
    upstream: Upstream, at: int, times: tuple[int, ...], lacking: tuple[tuple[str, ...], ...] = (), epoch: int = 0
) -> None:
    """Each replica's newest boundary is at this time, tentative where it says what it lacks."""
    for number, (candidate, time) in enumerate(zip(upstream.candidates, times, strict=True)):
        lacks = lacking[number] if lacking else ()
        frame = Boundary(Origin("r", 1), epoch, time, bool(lacks), 0, 0, U if lacks else S, lacking=lacks)
        upstream.hear(candidate, frame, at)


def test_one_that_lags_is_left_for_one_that_moves_on() -> None:
    upstream = upstream_of(S, S)
    upstream.slack_us = SILENCE
    reach(upstream, 1000, (50, 100))
    reach(upstream, 1000 + SILENCE, (50, 200))
    assert upstream.choose(1000 + SILENCE, 0) == (False, []) and upstream.live.log == A
    assert upstream.rank(upstream.live, 1001 + SILENCE) is Rank.LAGGING
    upstream.choose(1001 + SILENCE, 0)
    assert upstream.live.log == B


def test_one_whose_stable_rows_lag_is_left_for_one_that_has_them() -> None:
    """It is STABLE, and its early answers are as far as the other's stable ones."""
    upstream = upstream_of(S, S)
    upstream.slack_us, upstream.stable_slack_us = SILENCE, 2 * SILENCE

    def reach_early(at: int) -> None:
        reach(upstream, at, (50, at))
        early = Boundary(Origin("r", 1), 0, at, True, 0, 0, S)
        upstream.hear(upstream.candidates[0], early, at)

    for at in range(1000, 1000 + 2 * SILENCE + 1, 50):
        reach_early(at)
        assert upstream.choose(at, 0) == (False, []) and upstream.live.log == A, "the reader can wait for so long"
    reach_early(1001 + 2 * SILENCE)
    assert upstream.rank(upstream.live, 1001 + 2 * SILENCE) is Rank.UP_FAILURE
    assert upstream.choose(1001 + 2 * SILENCE, 0) == (True, [Unfollow(A), Follow(B, 0)])


def test_what_was_undone_is_no_progress() -> None:
    upstream = upstream_of(U, U)
    upstream.slack_us = SILENCE
    reach(upstream, 1000, (900, 100), (("x",), ("x",)))
    reach(upstream, 1010, (50, 100), (("x",), ("x",)), epoch=1)
    reach(upstream, 1000 + SILENCE, (50, 200), (("x",), ("x",)), epoch=1)
    assert upstream.rank(upstream.live, 1011 + SILENCE) is Rank.LAGGING


def test_of_two_that_fail_the_one_that_lacks_fewer_inputs_is_read_once_that_has_lasted() -> None:
    upstream = upstream_of(U, U)
    for at in range(1000, 1000 + SILENCE + 1, 50):
        reach(upstream, at, (at, at), (("x", "y"), ("x",)))
        upstream.choose(at, 0)
        assert upstream.live.log == A, "it may be over in a moment"
    reach(upstream, 1001 + SILENCE, (2000, 2000), (("x", "y"), ("x",)))
    upstream.choose(1001 + SILENCE, 0)
    assert upstream.live.log == B
