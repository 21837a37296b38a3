"""The choice of the replica of an input that is read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import reconcile.instance
import reconcile.upstream
from boreal.model.frames import INFINITY, Start, State
from intake.calm import CalmPace
from logs.index import Index
from reconcile.instance import Instance
from reconcile.upstream import Candidate, Rank, Upstream
from simulation.mutants.registry import Patch, caught_by, mutant


@mutant
def follow_one_row_too_late(patch: Patch) -> None:
    """A reader that switches follows the new log from one row too late."""

    def make(original: Any) -> Any:
        return lambda self, now, last_id: original(self, now, last_id + 1)

    patch(Upstream, "choose", make)


@mutant
def approach_from_one_row_too_late(patch: Patch) -> None:
    """A reader that goes over to a nearer replica follows its log from one row too late."""

    def make(original: Any) -> Any:
        return lambda self, now, last_id, is_firm: original(self, now, last_id + 1, is_firm)

    patch(Upstream, "approach", make)


@caught_by("reconcile/test_upstream.py", "test_a_nearer_replica_waits_until_nothing_tentative_is_held")
def approach_over_a_tentative_suffix(patch: Patch) -> None:
    """A reader goes over to a nearer replica while it holds tentative rows, which nothing revokes (R23)."""

    def make(original: Any) -> Any:
        return lambda self, now, last_id, is_firm: original(self, now, last_id, True)

    patch(Upstream, "approach", make)


@caught_by("reconcile/test_upstream.py", "test_a_nearer_replica_is_not_read_unless_both_are_stable")
def approach_one_that_fails(patch: Patch) -> None:
    """A reader goes over to a nearer replica whatever that one's state is."""

    def make(original: Any) -> Any:
        def approach(self: Upstream, now: int, last_id: int, is_firm: bool) -> Any:
            for candidate in self.candidates:
                if candidate.is_near:
                    candidate.state = State.STABLE
            return original(self, now, last_id, is_firm)

        return approach

    patch(Upstream, "approach", make)


@caught_by("reconcile/test_upstream.py", "test_a_nearer_replica_is_read_once_both_have_been_stable_for_long_enough")
def approach_at_once(patch: Patch) -> None:
    """A reader goes over to a nearer replica as soon as that one is STABLE. Each change costs a look into a log."""

    def make(original: Any) -> Any:
        def approach(self: Upstream, now: int, last_id: int, is_firm: bool) -> Any:
            self.nearer_since = -INFINITY
            return original(self, now, last_id, is_firm)

        return approach

    patch(Upstream, "approach", make)


@caught_by("reconcile/test_upstream.py", "test_at_first_the_nearest_log_is_followed")
def begin_far_away(patch: Patch) -> None:
    """A reader begins with the first replica, however far away it is."""

    def make(original: Any) -> Any:
        def begin(self: Upstream, now: int, after_id: int) -> Any:
            near = frozenset(candidate.log for candidate in self.candidates if candidate.is_near)
            self.set_near(frozenset())
            effects = original(self, now, after_id)
            self.set_near(near)
            return effects

        return begin

    patch(Upstream, "begin", make)


@mutant
def never_switch(patch: Patch) -> None:
    """A reader stays with the replica that it began with."""
    patch(Upstream, "choose", lambda _: lambda self, now, last_id: (False, []))


@mutant
def believe_a_silent_replica(patch: Patch) -> None:
    """Silence of an input is not noticed: a dead replica ranks by its last state."""

    def make(original: Any) -> Any:
        def rank(self: Upstream, candidate: Any, now: int) -> Any:
            return original(self, candidate, candidate.seen)

        return rank

    patch(Upstream, "rank", make)


@mutant
def ignore_fencing(patch: Patch) -> None:
    """Frames that a dead incarnation wrote after its successor's START are taken like any others (R25)."""

    def make(original: Any) -> Any:
        def add(self: Index, frame: Any) -> int:
            if not isinstance(frame, Start) and frame.origin.incarnation < self.incarnation:
                frame = replace(frame, origin=replace(frame.origin, incarnation=self.incarnation))
            return int(original(self, frame))

        return add

    def hear(original: Any) -> Any:
        def always(self: Upstream, candidate: Any, frame: Any, now: int) -> bool:
            original(self, candidate, frame, now)
            return True

        return always

    patch(Index, "add", make)
    patch(Upstream, "hear", hear)


@caught_by("reconcile/test_upstream.py", "test_switching")
def keep_the_suffix_at_a_switch(patch: Patch) -> None:
    """A reader that moves to a STABLE replica keeps the tentative rows of the one before (R23)."""

    def make(original: Any) -> Any:
        return lambda self, now, last_id: (False, original(self, now, last_id)[1])

    patch(Upstream, "choose", make)


@caught_by("reconcile/test_upstream.py", "test_switching")
def follow_no_correction(patch: Patch) -> None:
    """While a live replica is read, no other one is read for its corrections (R17)."""

    def make(_: Any) -> Any:
        def choose_correcting(self: Upstream, ranks: Any) -> None:
            self.correcting = None

        return choose_correcting

    patch(Upstream, "_choose_correcting", make)


@caught_by("reconcile/test_upstream.py", "test_what_a_backlog_says_of_its_writers_state_is_past")
def believe_the_state_in_a_backlog(patch: Patch) -> None:
    """The state in old frames is taken for their writer's current state (R12)."""
    patch(Candidate, "is_behind", lambda _: property(lambda self: False))


@caught_by("reconcile/test_upstream.py", "test_time_that_the_reader_itself_was_away_is_nobodys_silence")
def count_own_absence_as_silence(patch: Patch) -> None:
    """Time in which an instance worked, or was stopped, counts as silence of its inputs."""
    patch(Upstream, "discount", lambda _: lambda self, late_us: None)


@caught_by("reconcile/test_upstream.py", "test_a_silence_of_all_at_once_is_nobodys_death")
def take_a_common_silence_for_a_death(patch: Patch) -> None:
    """A silence of all replicas at once counts as the death of the one that is read (R24)."""
    patch(Upstream, "_is_survived", lambda _: lambda self: True)


@caught_by("reconcile/test_upstream.py", "test_switching")
def read_from_one_that_recovers(patch: Patch) -> None:
    """A replica that is catching up ranks as one that is STABLE (R12)."""

    def make(original: Any) -> Any:
        def rank(self: Upstream, candidate: Any, now: int) -> Any:
            found = original(self, candidate, now)
            return Rank.STABLE if found is Rank.RECOVERING else found

        return rank

    patch(Upstream, "rank", make)


@caught_by("reconcile/test_upstream.py", "test_switching")
def prefer_one_that_reconciles(patch: Patch) -> None:
    """A replica in STABILIZATION is preferred to a live one in UP_FAILURE."""

    def make(original: Any) -> Any:
        def rank(self: Upstream, candidate: Any, now: int) -> Any:
            found = original(self, candidate, now)
            return {Rank.STABILIZATION: Rank.UP_FAILURE, Rank.UP_FAILURE: Rank.STABILIZATION}.get(found, found)

        return rank

    patch(Upstream, "rank", make)


@caught_by("reconcile/test_upstream.py", "test_the_tail_of_a_dead_life_tells_nothing")
def hear_the_dead_in_a_tail(patch: Patch) -> None:
    """Late frames of a dead incarnation count as hearing its log (R25)."""

    def make(original: Any) -> Any:
        def hear_tail(self: Upstream, log: Any, frame: Any, now: int) -> None:
            candidate = self.candidate(log)
            newest = max(candidate.incarnation, candidate.newest_heard)
            if frame.origin.incarnation < newest:
                frame = replace(frame, origin=replace(frame.origin, incarnation=newest))
            original(self, log, frame, now)

        return hear_tail

    patch(Upstream, "hear_tail", make)


@caught_by("reconcile/test_instance.py", "test_a_silent_port_is_found_out_before_its_third_boundary_is_due_and_said_at_once")
def call_a_failed_input_well(patch: Patch) -> None:
    """A failed input is not advertised before the first tentative step: readers stay too long (R10)."""

    def make(original: Any) -> Any:
        def look_at_inputs(self: Instance, now: int, effects: list[Any]) -> None:
            original(self, now, effects)
            for link in self.links:
                link.port.failed = False

        return look_at_inputs

    patch(Instance, "_look_at_inputs", make)


@caught_by("reconcile/test_instance.py", "test_a_silent_port_is_found_out_before_its_third_boundary_is_due_and_said_at_once")
def find_silence_out_too_late(patch: Patch) -> None:
    """An input counts as silent after thirty boundary intervals instead of three (R10)."""

    def make(original: Any) -> Any:
        return lambda self, candidate, now: original(self, candidate, now - 9 * self.silence_us)

    patch(Upstream, "is_silent", make)


@caught_by("reconcile/test_upstream.py", "test_one_that_lags_is_left_for_one_that_moves_on")
def stay_with_one_that_lags(patch: Patch) -> None:
    """A replica's progress in boundaries is ignored when replicas are ranked."""
    patch(reconcile.upstream, "_lag", lambda _: lambda others, reached, now: 0)


@caught_by("reconcile/test_upstream.py", "test_one_whose_stable_rows_lag_is_left_for_one_that_has_them")
def stay_with_one_that_only_answers_early(patch: Patch) -> None:
    """A STABLE replica ranks as such however far its stable boundary lags behind another's."""

    def make(original: Any) -> Any:
        def rank(self: Upstream, candidate: Any, now: int) -> Any:
            slack_us, self.stable_slack_us = self.stable_slack_us, INFINITY
            try:
                return original(self, candidate, now)
            finally:
                self.stable_slack_us = slack_us

        return rank

    patch(Upstream, "rank", make)


@caught_by("reconcile/test_upstream.py", "test_of_two_that_fail_the_one_that_lacks_fewer_inputs_is_read_once_that_has_lasted")
def stay_with_one_that_lacks_more(patch: Patch) -> None:
    """Of replicas in UP_FAILURE the current one is kept, although another lacks fewer inputs."""
    patch(Upstream, "_least_missing", lambda _: lambda self, ranks, now: self.live)


@caught_by("reconcile/test_instance.py", "test_boundaries_say_at_once_which_inputs_are_lacking")
def say_nothing_of_what_is_lacking(patch: Patch) -> None:
    """Boundaries do not say which inputs a replica lacks, so readers cannot tell one that lacks all of them (R10)."""
    patch(Instance, "_lacking", lambda _: lambda self: ())


@caught_by("reconcile/test_upstream.py", "test_of_two_that_fail_the_one_that_lacks_fewer_inputs_is_read_once_that_has_lasted")
def leave_at_once_for_one_that_lacks_less(patch: Patch) -> None:
    """A reader changes replicas as soon as another lacks fewer inputs, and not only when that has lasted."""

    def make(original: Any) -> Any:
        def least_missing(self: Upstream, ranks: Any, now: int) -> Any:
            self.worse_since = -INFINITY
            return original(self, ranks, now)

        return least_missing

    patch(Upstream, "_least_missing", make)


@caught_by("reconcile/test_upstream.py", "test_what_was_undone_is_no_progress")
def count_what_was_undone_as_progress(patch: Patch) -> None:
    """Rows that an UNDO has revoked still count as a replica's progress."""

    def make(original: Any) -> Any:
        def note_progress(self: Upstream, candidate: Any, frame: Any, now: int) -> None:
            candidate.epoch = frame.epoch
            original(self, candidate, frame, now)

        return note_progress

    patch(Upstream, "_note_progress", make)


@mutant
def take_what_is_calm_for_dead(patch: Patch) -> None:
    """A reader ignores that a calm replica has said for how long it may be silent (R24)."""
    patch(Upstream, "is_silent", lambda _: lambda self, candidate, now: now - candidate.seen > self.silence_us)


@mutant
def stay_calm_whatever_comes(patch: Patch) -> None:
    """An instance is calm although rows come: their boundaries, and so the rows, are left out (R24)."""

    def make(original: Any) -> Any:
        def pause_us(self: Instance, now: int) -> int:
            self.rows_at = -INFINITY
            return int(original(self, now))

        return pause_us

    patch(Instance, "_pause_us", make)


@mutant
def pause_without_a_word(patch: Patch) -> None:
    """A calm source is silent for longer, and its boundaries do not say so (R24)."""

    def make(original: Any) -> Any:
        def say(self: CalmPace, now: int, calm_pause_us: int, calm_interval_us: int) -> int:
            original(self, now, calm_pause_us, calm_interval_us)
            return 0

        return say

    patch(CalmPace, "say", make)


@caught_by("reconcile/test_instance.py", "test_rows_that_wait_for_streams_without_rows_keep_their_sources_awake")
def wake_nobody(patch: Patch) -> None:
    """Rows wait for the boundary that a calm source writes after its pause: nobody asks it for one (R24)."""
    patch(Instance, "_wake_calm", lambda _: lambda self, now, effects: None)


@mutant
def leave_out_the_end(patch: Patch) -> None:
    """A calm instance leaves out the boundary with which its stream ends."""

    def make(original: Any) -> Any:
        return lambda self, step: original(self, step) or step.upto >= INFINITY

    patch(Instance, "_is_left_out", make)
