"""SUnion: order, buckets, deadlines, marks and redos."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

import reconcile.soutput
import sunion.port
import sunion.sunion
from boreal.model.frames import INFINITY, ingest_at
from boreal.query.spec import Hold, Policy
from reconcile.instance import Instance
from simulation.mutants.registry import Patch, caught_by, mutant
from sunion.port import Port
from sunion.sunion import Heal, SUnion
from sunion.tape import BEGINNING, Chunk, Cursor, Tape


@mutant
def order_by_arrival(patch: Patch) -> None:
    """SUnion emits the rows of its ports in the order of arrival, and not by (time, port, id)."""

    def make(_: Any) -> Any:
        def merge(self: SUnion, merge: Any, taken: Any) -> Any:
            batches = [batch for at in merge.ports for batch in taken[at].batches]
            return pa.concat_batches(batches) if batches else self._empty[merge.name]

        return merge

    patch(SUnion, "_merge", make)


@mutant
def emit_tentative_before_alpha_x(patch: Patch) -> None:
    """A bucket is overdue as soon as it has arrived: no row is held back for alpha*X."""
    patch(SUnion, "_overdue_at", lambda _: lambda self, ingest, not_before, returned_by: not_before)


@mutant
def count_the_deadline_at_every_hop(patch: Patch) -> None:
    """A bucket's deadline counts from its arrival at each SUnion, and not from ingest: waits add up along a chain."""

    def make(original: Any) -> Any:
        def overdue_at(self: SUnion, ingest: int, not_before: int, returned_by: int) -> int:
            return max(int(original(self, ingest, not_before, returned_by)), not_before + self.alpha_x_us)

        return overdue_at

    patch(SUnion, "_overdue_at", make)


@mutant
def wait_for_the_missing(patch: Patch) -> None:
    """SUnion waits for a missing port for ever: policy `process` acts as suspend."""
    patch(SUnion, "_tentative_items", lambda _: lambda self, now: [])


@mutant
def close_a_bucket_too_early(patch: Patch) -> None:
    """A bucket counts as stable once the first port, and not every port, has its stable boundary past it."""

    def make(original: Any) -> Any:
        def stable_step(self: SUnion) -> Any:
            through = self._floor(max(port.tape.boundary for port in self.ports))
            if len(self.ports) == 1 or through <= self.base.position or through >= INFINITY:
                return original(self)
            return self._step(self.base, through, tentative=False)

        return stable_step

    patch(SUnion, "_stable_step", make)


@mutant
def forget_the_mark(patch: Patch) -> None:
    """At ROLLBACK SUnion continues from the position of the tentative branch, and not from the mark."""

    def make(original: Any) -> Any:
        def roll_back(self: SUnion, now: int, replay_from: int, keep_live: bool) -> Any:
            assert self.live is not None
            position, cursors = self.live.position, [cursor.fork() for cursor in self.live.cursors]
            order = original(self, now, replay_from, keep_live)
            self.base.position, self.base.cursors = position, cursors
            return order

        return roll_back

    patch(SUnion, "roll_back", make)


@mutant
def redo_without_one_port(patch: Patch) -> None:
    """The redo takes the first port's rows from their current position on, and not from the mark."""

    def make(original: Any) -> Any:
        def roll_back(self: SUnion, now: int, replay_from: int, keep_live: bool) -> Any:
            order = original(self, now, replay_from, keep_live)
            self.base.cursors[0] = Cursor(self.ports[0].tape.next_id)
            return order

        return roll_back

    patch(SUnion, "roll_back", make)


@caught_by("sunion/test_sunion.py", "test_it_has_healed_only_once_the_stable_boundaries_have_passed_all_that_was_tentative")
def heal_too_early(patch: Patch) -> None:
    """A failure counts as healed as soon as any bucket can be corrected, again and again."""

    def make(_: Any) -> Any:
        def healed(self: SUnion, *_: int) -> Heal | None:
            return None if self.live is None or self.redoing else Heal.FULL

        return healed

    patch(SUnion, "healed", make)


@caught_by("sunion/test_sunion.py", "test_early_answers_are_corrected_at_once_if_far_more_rows_have_come_since")
def keep_early_answers_before_a_flood(patch: Patch) -> None:
    """Early answers stay for alpha*X, however many more rows have come since."""
    patch(SUnion, "_is_outweighed", lambda _: lambda self: False)


@mutant
def heal_never_in_part(patch: Patch) -> None:
    """Only a full heal is acted on (R16): rolling failures starve stable output."""

    def make(original: Any) -> Any:
        def healed(self: SUnion, *place: int) -> Heal | None:
            found = original(self, *place)
            return found if found is Heal.FULL else None

        return healed

    patch(SUnion, "healed", make)


@mutant
def mute_nothing_on_rebuild(patch: Patch) -> None:
    """The output of steps that only rebuild state is written."""

    def make(original: Any) -> Any:
        def step(self: SUnion, view: Any, through: int, tentative: bool) -> Any:
            return replace(original(self, view, through, tentative), muted=False)

        return step

    patch(SUnion, "_step", make)


@mutant
def forget_replay_after_spill(patch: Patch) -> None:
    """Rows that were evicted from memory are not read again from the log."""
    patch(Cursor, "is_joined", lambda _: lambda self, tape: True)


@mutant
def let_the_replay_boundary_run_ahead(patch: Patch) -> None:
    """Boundaries of a replay count before the rows that they cover were taken."""

    def make(original: Any) -> Any:
        def take_replayed(self: Cursor, tape: Tape, first_id: int, batch: Any, ingest: Any) -> None:
            original(self, tape, first_id, batch, ingest)
            self.replay_boundary = max(self.replay_boundary, tape.boundary)

        return take_replayed

    patch(Cursor, "take_replayed", make)


@caught_by("sunion/test_sunion.py", "test_a_tentative_step_names_every_input_that_it_lacks_and_all_that_its_upstream_lacks")
def name_the_first_missing_input_only(patch: Patch) -> None:
    """Of several inputs that a tentative step lacks, only the first is named."""

    def make(original: Any) -> Any:
        def why(self: SUnion, since: int, upto: int) -> Any:
            missing, cause = original(self, since, upto)
            return missing[:1], cause

        return why

    patch(SUnion, "_why", make)


@caught_by("sunion/test_sunion.py", "test_a_tentative_step_names_every_input_that_it_lacks_and_all_that_its_upstream_lacks")
def forget_what_upstream_lacks(patch: Patch) -> None:
    """A tentative step names the inputs that it lacks itself, and not those that its upstream lacks."""

    def make(original: Any) -> Any:
        def why(self: SUnion, since: int, upto: int) -> Any:
            known = [port.blames for port in self.ports]
            for port in self.ports:
                port.blames = deque()
            named = original(self, since, upto)
            for port, blames in zip(self.ports, known, strict=True):
                port.blames = blames
            return named

        return why

    patch(SUnion, "_why", make)


@caught_by("sunion/test_sunion.py", "test_a_tentative_step_names_what_it_lacks_and_why")
def blame_every_input(patch: Patch) -> None:
    """A tentative step names all of its inputs as missing."""

    def make(original: Any) -> Any:
        def why(self: SUnion, since: int, upto: int) -> Any:
            return tuple(dict.fromkeys(port.name for port in self.ports)), original(self, since, upto)[1]

        return why

    patch(SUnion, "_why", make)


@caught_by("sunion/test_sunion.py", "test_a_tentative_step_names_every_input_that_it_lacks_and_all_that_its_upstream_lacks")
def hide_the_cause_upstream(patch: Patch) -> None:
    """A tentative step names this instance as the cause, although its upstream knows the failure that began it."""

    patch(SUnion, "_cause", lambda _: lambda self: f"{self.name}-{self.mark_number}")


@caught_by("sunion/test_sunion.py", "test_stable_rows_do_not_depend_on_how_the_streams_were_cut_and_interleaved")
def hand_on_a_bucket_end_twice(patch: Patch) -> None:
    """A row whose time is the end of a step is emitted with that step, and again with the next one."""

    def make(original: Any) -> Any:
        return lambda self, since, upto: original(self, since, upto if upto >= INFINITY else upto + 1)

    patch(Chunk, "between", make)


@caught_by("sunion/test_sunion.py", "test_stable_rows_do_not_depend_on_how_the_streams_were_cut_and_interleaved")
def lose_a_row_on_a_bucket_end(patch: Patch) -> None:
    """A chunk whose last row has the time of a step's end counts as consumed by that step."""

    def make(original: Any) -> Any:
        return lambda self, tape, upto: original(self, tape, upto if upto >= INFINITY else upto + 1)

    patch(Cursor, "consume", make)


@caught_by("sunion/test_tape.py", "test_a_tape_that_begins_late_knows_where_older_rows_begin")
def replay_from_after_the_time(patch: Patch) -> None:
    """A replay begins with the chunk after the one that reaches the time."""
    patch(Tape, "place_of", lambda original: lambda self, time: original(self, time + 1))


@mutant
def take_equal_times_by_the_last_port_first(patch: Patch) -> None:
    """Rows of equal time are emitted in the reverse order of their ports."""

    def make(original: Any) -> Any:
        return lambda self, merge, taken: original(self, replace(merge, ports=merge.ports[::-1]), taken)

    patch(SUnion, "_merge", make)


@mutant
def forget_the_order_of_equal_times(patch: Patch) -> None:
    """Rows of one port are sorted by time and key, and do not keep their order at equal times."""

    def make(original: Any) -> Any:
        def merge(self: SUnion, merge: Any, taken: Any) -> Any:
            merged = original(self, merge, taken)
            order = np.lexsort((-np.arange(merged.num_rows), merged.column(0).to_numpy()))
            return merged.take(pa.array(order))

        return merge

    patch(SUnion, "_merge", make)


@caught_by("sunion/test_port.py", "test_stable_arrivals_get_a_grace_and_tentative_ones_none")
def let_stable_rows_be_overdue_at_once(patch: Patch) -> None:
    """A backlog that arrives after a cut is overdue at once: there is no grace (R8)."""

    def make(original: Any) -> Any:
        return lambda self, chunk, tentative, not_before: original(self, chunk, tentative, not_before - self.grace_us)

    patch(Port, "_arrived", make)


@mutant
def give_tentative_rows_a_grace(patch: Patch) -> None:
    """Rows that an upstream has already held back get the grace again, at every hop."""

    def make(original: Any) -> Any:
        def take_visible(self: Instance, link: Any, candidate: Any, frame: Any, now: int) -> None:
            original(self, link, candidate, frame, now)
            least = now + link.port.grace_us
            held = (arrival._replace(not_before=max(arrival.not_before, least)) for arrival in link.port.arrivals)
            link.port.arrivals = deque(held)

        return take_visible

    patch(Instance, "_take_visible", make)


@caught_by("sunion/test_port.py", "test_each_bucket_of_a_frame_is_overdue_by_its_oldest_row")
def count_a_frame_from_its_newest_row(patch: Patch) -> None:
    """A frame's deadline counts from its newest row, and not from its oldest (R8)."""

    def make(original: Any) -> Any:
        def arrived(self: Port, chunk: Any, tentative: bool, now: int) -> None:
            low, chunk.low = chunk.low, chunk.high
            original(self, chunk, tentative, now)
            chunk.low = low

        return arrived

    patch(Port, "_arrived", make)


@caught_by("sunion/test_sunion.py", "test_a_bucket_counts_from_its_oldest_row_or_the_first_boundary_past_its_end")
def count_from_rows_alone(patch: Patch) -> None:
    """A bucket that a boundary has passed is not overdue before it has a row: quiet windows wait (R8)."""

    def make(original: Any) -> Any:
        def take_boundary(self: Port, frame: Any, now: int) -> None:
            arrivals = self.arrivals.copy()
            original(self, frame, now)
            self.arrivals = arrivals

        return take_boundary

    patch(Port, "take_boundary", make)


@mutant
def tell_no_ingest_of_boundaries(patch: Patch) -> None:
    """A step's ingest times are those of its rows alone: downstream a window counts from its last row (R8)."""

    def make(original: Any) -> Any:
        def ingest(self: SUnion, taken: Any, upto: int) -> Any:
            known = [port.boundaries for port in self.ports]
            for port in self.ports:
                port.boundaries = type(port.boundaries)()
            made = original(self, taken, upto)
            for port, boundaries in zip(self.ports, known, strict=True):
                port.boundaries = boundaries
            return made

        return ingest

    patch(SUnion, "_ingest", make)


@caught_by("reconcile/test_instance.py", "test_one_row_ahead_of_its_stream_makes_nothing_tentative_and_blinds_nobody")
def let_a_row_ahead_drag_all_along(patch: Patch) -> None:
    """A row far ahead of all boundaries is overdue like any other, and makes all buckets before it overdue (R8)."""
    patch(SUnion, "_is_ahead", lambda _: lambda self, upto: False)


@caught_by("sunion/test_port.py", "test_a_row_of_a_sparse_stream_is_no_leap_where_its_time_has_come")
def take_sparse_rows_for_leaps(patch: Patch) -> None:
    """A row counts as far ahead of the one before it, although run time has reached its time (R8)."""

    def make(original: Any) -> Any:
        def leaps_from(self: Port, chunk: Any, upto: int) -> Any:
            self.reach_ingest = INFINITY
            return original(self, chunk, upto)

        return leaps_from

    patch(Port, "_leaps_from", make)


@caught_by("sunion/test_port.py", "test_a_row_that_is_ahead_of_a_boundary_by_what_may_be_out_of_order_is_no_leap")
def forget_how_far_boundaries_are_behind(patch: Patch) -> None:
    """A row counts as far ahead of a stable boundary that only waits for rows out of order (R8)."""

    def make(original: Any) -> Any:
        def leaps_from(self: Port, chunk: Any, upto: int) -> Any:
            self.reach = max(self.data_end, self.tape.boundary)
            return original(self, chunk, upto)

        return leaps_from

    patch(Port, "_leaps_from", make)


@caught_by("sunion/test_port.py", "test_tentative_rows_are_due_by_their_own_ingest_whatever_came_before_them")
def keep_tentative_rows_behind_what_counts_from_later(patch: Patch) -> None:
    """Tentative rows are not overdue before later deadlines that were noted before they came (R8)."""

    def make(original: Any) -> Any:
        return lambda self, chunk, tentative, not_before: original(self, chunk, tentative, max(not_before, 0))

    patch(Port, "_arrived", make)


@caught_by("sunion/test_sunion.py", "test_a_tentative_step_ends_where_what_it_lacks_changes")
def name_for_all_what_the_last_bucket_lacks(patch: Patch) -> None:
    """A tentative step of several buckets names what the last of them lacks."""
    patch(SUnion, "_changes", lambda _: lambda self, position: ())


@caught_by(
    "sunion/test_port.py",
    "test_where_stable_rows_end_and_the_tentative_ones_after_them_lack_an_input_what_is_lacked_changes",
)
def name_for_stable_rows_what_those_after_them_lack(patch: Patch) -> None:
    """A tentative step does not end where the stable rows of an upstream end: they name what the rows after them lack."""

    def make(original: Any) -> Any:
        return lambda self, since: original(self, max(since, self.tape.boundary))

    patch(Port, "blamed_through", make)


@caught_by("sunion/test_port.py", "test_buckets_that_a_step_has_passed_before_its_rows_are_due_from_when_their_ends_were_known")
def let_empty_buckets_wait_for_rows(patch: Patch) -> None:
    """Buckets that a producer's step has passed without rows are due only with the rows after them (R8)."""

    def make(original: Any) -> Any:
        def arrived(self: Port, chunk: Chunk, tentative: bool, not_before: int) -> None:
            original(self, chunk, tentative, not_before)
            self.arrivals = deque(arrival for arrival in self.arrivals if arrival.upto > chunk.low)

        return arrived

    patch(Port, "_arrived", make)


@caught_by("sunion/test_sunion.py", "test_a_stream_that_is_behind_early_answers_is_not_missing")
def take_who_is_behind_for_missing(patch: Patch) -> None:
    """A stream whose rows are out of order, and so behind an early answer, counts as missing: after all others have ended, it
    is not waited for (R11)."""

    def make(_: Any) -> Any:
        return lambda self, port: port.silent or port.boundary < self.leading.position

    patch(SUnion, "_is_missing", make)


@caught_by("sunion/test_sunion.py", "test_rows_behind_early_answers_leave_at_once_where_rows_are_out_of_order_anyway")
def hold_back_again_what_an_early_correction_undid(patch: Patch) -> None:
    """Rows that an early correction has undone, because of late rows behind them, get a new deadline, although readers may
    already have held them back (R16)."""

    def make(original: Any) -> Any:
        def roll_back(self: SUnion, now: int, replay_from: int, keep_live: bool) -> Any:
            settings, self.settings = self.settings, replace(self.settings, disorder_us=0)
            order = original(self, now, replay_from, keep_live)
            self.settings = settings
            return order

        return roll_back

    patch(SUnion, "roll_back", make)


@caught_by("sunion/test_sunion.py", "test_what_an_early_correction_undoes_leaves_at_once_while_readers_may_have_held_it_back")
def take_what_was_handed_on_for_given(patch: Patch) -> None:
    """Rows that an early correction has undone count as given to clients, although readers may have held them back (R16)."""
    patch(SUnion, "_held_back_after", lambda _: lambda self, now: BEGINNING)


@caught_by("sunion/test_port.py", "test_no_bucket_is_overdue_for_what_is_undone")
def keep_what_is_undone_overdue(patch: Patch) -> None:
    """A bucket is overdue because of tentative rows that have been undone, and is emitted without their corrections (R8)."""

    def make(original: Any) -> Any:
        def revoke(self: Port, now: int) -> None:
            arrivals = self.arrivals.copy()
            original(self, now)
            self.arrivals = arrivals

        return revoke

    patch(Port, "revoke", make)


@caught_by("sunion/test_port.py", "test_of_each_bucket_that_is_named_which_its_own_rows_lack")
def name_what_upstream_lacks_by_now(patch: Patch) -> None:
    """An older bucket names as missing the inputs that its upstream lacks now."""

    def make(original: Any) -> Any:
        return lambda self, since, upto: self.blames[-1].missing if self.blames and upto > self.tape.boundary else ()

    patch(Port, "missing_in", make)


@caught_by("sunion/test_sunion.py", "test_what_came_behind_the_live_view_waits_for_its_own_deadline_once_that_has_ended")
def forget_what_came_behind_a_kept_live_view(patch: Patch) -> None:
    """Rows that came behind a live view that was kept during a correction have no deadline after it ends (R8, R21)."""

    def make(original: Any) -> Any:
        def end_live(self: SUnion) -> None:
            self._behind.clear()
            original(self)

        return end_live

    patch(SUnion, "_end_live", make)


@caught_by("sunion/test_sunion.py", "test_an_old_mark_is_healed_in_part_when_stable_input_goes_on")
def forget_the_rest_after_a_partial_heal(patch: Patch) -> None:
    """After a PREFIX heal the remaining due rows are held back for alpha*X again (R16)."""

    def make(original: Any) -> Any:
        def roll_back(self: SUnion, now: int, replay_from: int, keep_live: bool) -> Any:
            order = original(self, now, replay_from, keep_live)
            self.due = BEGINNING
            return order

        return roll_back

    patch(SUnion, "roll_back", make)


@caught_by("sunion/test_sunion.py", "test_what_became_overdue_in_the_midst_of_a_redo_is_given_a_moment_to_be_stable")
def give_no_moment_after_a_redo(patch: Patch) -> None:
    """Rows that became overdue during a redo are emitted tentatively at once, although their input may have arrived (R8)."""
    patch(SUnion, "_is_quiet", lambda _: lambda self, now: False)


@caught_by("sunion/test_sunion.py", "test_what_a_producer_gives_again_after_an_undo_waits_for_the_other_ports")
def take_a_frame_as_due_with_its_first_bucket(patch: Patch) -> None:
    """All tentative rows of a frame leave when its first bucket is overdue (R8)."""

    def make(original: Any) -> Any:
        def arrived(self: Port, chunk: Chunk, tentative: bool, not_before: int) -> None:
            first = ingest_at(chunk.ingest, chunk.low)
            original(self, replace(chunk, ingest=((INFINITY, first),)) if tentative else chunk, tentative, not_before)

        return arrived

    patch(Port, "_arrived", make)


@caught_by("sunion/test_sunion.py", "test_a_port_that_returns_after_an_undo_is_waited_for")
def pass_a_port_that_returns(patch: Patch) -> None:
    """A bucket that is overdue between an UNDO and what follows it leaves without the rows of the port (R8)."""
    patch(Port, "is_returning", lambda _: property(lambda self: False))


@caught_by("sunion/test_sunion.py", "test_a_port_that_does_not_return_after_an_undo_is_waited_for_no_longer_than_a_part_of_x")
def wait_for_a_port_that_does_not_return(patch: Patch) -> None:
    """The wait for a port that returns after an UNDO may take all that is left of X (R8, R9)."""
    patch(sunion.sunion, "RETURN_SHARE", lambda _: 2)


@caught_by("sunion/test_sunion.py", "test_an_old_mark_is_healed_in_part_when_stable_input_goes_on")
def heal_in_part_at_once(patch: Patch) -> None:
    """A failure heals in part as soon as one bucket can be corrected, however young the mark is (R16)."""

    def make(original: Any) -> Any:
        def healed(self: SUnion, now: int, replay_from: int) -> Any:
            marked_at, self.marked_at = self.marked_at, BEGINNING
            found = original(self, now, replay_from)
            self.marked_at = marked_at
            return found

        return healed

    patch(SUnion, "healed", make)


@caught_by("sunion/test_sunion.py", "test_windows_that_were_closed_beyond_all_input_need_not_end_to_be_corrected")
def heal_beyond_all_input(patch: Patch) -> None:
    """After open windows were flushed, a failure counts as healed only when the inputs have ended (R16)."""
    patch(SUnion, "_horizon", lambda _: lambda self: self.live.position)


@caught_by("sunion/test_sunion.py", "test_a_flush_of_windows_without_a_row_after_the_mark_has_not_healed_before_more_is_stable")
def heal_a_flush_at_once(patch: Patch) -> None:
    """A flush of open windows counts as healed at once where no row came after the mark, and is then repeated (R16)."""
    patch(SUnion, "_has_news", lambda _: lambda self: True)


@caught_by("sunion/test_sunion.py", "test_what_all_producers_have_undone_is_not_due_again_before_it_comes_again")
def hand_on_again_what_was_undone(patch: Patch) -> None:
    """After a rollback the buckets whose rows the producers have undone leave again at once, empty (R8)."""

    def make(original: Any) -> Any:
        def roll_back(self: SUnion, now: int, replay_from: int, keep_live: bool) -> Any:
            due = BEGINNING if self._stranded else self.due
            original(self, now, replay_from, keep_live)
            self.due = max(self.due, due)

        return roll_back

    patch(SUnion, "roll_back", make)


@caught_by("sunion/test_sunion.py", "test_it_has_not_healed_while_rows_to_be_redone_lie_in_a_log_out_of_reach")
def redo_what_cannot_be_read(patch: Patch) -> None:
    """A rollback begins although rows that it needs are in a log that is out of reach."""
    patch(SUnion, "_can_redo", lambda _: lambda self, replay_from: True)


@caught_by("sunion/test_sunion.py", "test_evicted_rows_are_asked_for_again_from_the_log")
def end_the_redo_too_early(patch: Patch) -> None:
    """A correction counts as complete although some of its rows are still to be read from the log."""
    patch(SUnion, "_has_caught_up", lambda _: lambda self: True)


@caught_by("sunion/test_sunion.py", "test_rows_that_are_read_again_from_the_log_are_not_answered_without")
def answer_without_what_is_being_read(patch: Patch) -> None:
    """A tentative step does not wait for rows of a reachable port that are being read again."""
    patch(SUnion, "_readable_through", lambda _: lambda self, view: INFINITY)


@mutant
def flush_no_windows(patch: Patch) -> None:
    """If all present streams have ended, and another is missing, open windows stay open (R11)."""
    patch(SUnion, "_flush_at", lambda _: lambda self: None)


@caught_by("sunion/test_sunion.py", "test_where_one_stream_has_ended_and_another_goes_on_no_window_is_closed_before_its_time")
def flush_windows_at_once(patch: Patch) -> None:
    """Open windows are flushed as soon as one stream has ended, although others continue."""

    def make(_: Any) -> Any:
        def flush_at(self: SUnion) -> int | None:
            if self.leading.position >= INFINITY or self.stable_through >= INFINITY:
                return None
            ends = [port.ended for port in self.ports if port.ended is not None]
            return min((self._overdue_at(*end, BEGINNING) for end in ends), default=None)

        return flush_at

    patch(SUnion, "_flush_at", make)


@mutant
def wait_for_the_missing_port_too(patch: Patch) -> None:
    """Policy `process` waits for ports that are missing: it acts as `delay` (R11)."""

    def make(_: Any) -> Any:
        return lambda self, now: self._floor(min(port.boundary for port in self.ports))

    patch(SUnion, "_all_present_through", make)


@caught_by("sunion/test_sunion.py", "test_delay_holds_each_bucket_to_its_deadline")
def process_under_delay(patch: Patch) -> None:
    """Policy `delay` acts as `process`: later buckets are emitted before their deadlines (R11)."""

    def make(original: Any) -> Any:
        def tentative_items(self: SUnion, now: int) -> Any:
            held = self.policy
            failure, stabilization = (Hold.PROCESS if hold is Hold.DELAY else hold for _, hold in held)
            self.policy = Policy(failure=failure, stabilization=stabilization)
            items = original(self, now)
            self.policy = held
            return items

        return tentative_items

    patch(SUnion, "_tentative_items", make)


@caught_by("sunion/test_sunion.py", "test_suspend_releases_nothing")
def answer_under_suspend(patch: Patch) -> None:
    """Policy `suspend` acts as `delay`: overdue buckets are emitted tentatively (R11)."""

    def make(original: Any) -> Any:
        def tentative_items(self: SUnion, now: int) -> Any:
            held = self.policy
            failure, stabilization = (Hold.DELAY if hold is Hold.SUSPEND else hold for _, hold in held)
            self.policy = Policy(failure=failure, stabilization=stabilization)
            items = original(self, now)
            self.policy = held
            return items

        return tentative_items

    patch(SUnion, "_tentative_items", make)


@caught_by("sunion/test_sunion.py", "test_suspend_in_stabilization_holds_new_rows_until_the_correction_is_complete")
def keep_one_policy_throughout(patch: Patch) -> None:
    """The policy for failures also holds in stabilization, for a kept live branch and for a replica that stays live."""

    def make(original: Any) -> Any:
        def tentative_items(self: SUnion, now: int) -> Any:
            held, self.policy = self.policy, Policy(failure=self.policy.failure, stabilization=self.policy.failure)
            items = original(self, now)
            self.policy = held
            return items

        return tentative_items

    patch(SUnion, "_tentative_items", make)


@caught_by("sunion/test_sunion.py", "test_before_a_correction_only_what_is_overdue_is_answered")
def send_tentative_rows_before_the_correction(patch: Patch) -> None:
    """Policy `process` emits more tentative rows although a correction is about to begin."""

    def make(original: Any) -> Any:
        def tentative_items(self: SUnion, now: int) -> Any:
            self.eager_from = BEGINNING
            return original(self, now)

        return tentative_items

    patch(SUnion, "_tentative_items", make)


@caught_by("sunion/test_sunion.py", "test_no_deadline_holds_while_catching_up")
def keep_deadlines_while_catching_up(patch: Patch) -> None:
    """An instance that is catching up keeps its deadlines: a backlog becomes tentative rows (R12)."""
    patch(SUnion, "advance", lambda original: lambda self, now, overdue_counts: original(self, now, True))


@caught_by("sunion/test_sunion.py", "test_a_step_is_bounded_over_all_ports_together")
def take_any_number_of_rows_in_a_step(patch: Patch) -> None:
    """A step holds all rows that may be emitted, however many they are."""
    patch(SUnion, "_limited", lambda _: lambda self, view, through, tentative: through)


@caught_by("sunion/test_port.py", "test_memory_is_bounded_for_stable_and_tentative_rows")
def keep_all_in_memory(patch: Patch) -> None:
    """No row is evicted: a failure of hours needs memory for hours."""
    patch(Port, "evict", lambda _: lambda self, limit, released: None)


@caught_by("reconcile/test_soutput.py", "test_a_row_on_a_buckets_start_is_of_that_bucket")
def put_an_edge_in_the_bucket_before(patch: Patch) -> None:
    """A row on a bucket's start is assigned to the bucket before it: its t_max is its own time (R4)."""

    def make(original: Any) -> Any:
        return lambda time, bucket_us: original(time - 1, bucket_us)

    for room in (sunion.port, reconcile.soutput):
        patch(room, "bucket_end", make)


@mutant
def take_an_early_answer_for_a_failure(patch: Patch) -> None:
    """Early answers of an upstream count as its failure, although nothing has failed."""
    patch(Port, "is_early", lambda _: property(lambda self: False))


@mutant
def undo_early_answers_one_by_one(patch: Patch) -> None:
    """Early answers are corrected as soon as one of them can be, which repeats corrections."""
    patch(SUnion, "_early_lag_us", lambda _: property(lambda self: 0))


@caught_by("sunion/test_sunion.py", "test_new_rows_behind_an_early_answer_are_not_left_to_its_correction")
def leave_rows_stranded(patch: Patch) -> None:
    """New rows behind the live view wait for the correction, and are not answered within X (R14)."""
    patch(SUnion, "_note_stranded", lambda _: lambda self, at, port: None)


@caught_by("sunion/test_sunion.py", "test_rows_that_were_under_way_when_an_early_answer_passed_them_are_new")
def take_what_was_under_way_as_answered(patch: Patch) -> None:
    """An early answer speaks for rows that were ingested before it and had not arrived (R14)."""

    def make(original: Any) -> Any:
        return lambda self, upto: original(self, upto) + self.settings.bucket_run_us

    patch(SUnion, "_passed_at", make)


@caught_by("sunion/test_sunion.py", "test_what_is_answered_again_stays_in_proportion_to_what_was_new")
def answer_again_whatever_it_costs(patch: Patch) -> None:
    """After early corrections tentative rows are emitted again without bound."""
    patch(SUnion, "_is_cheap", lambda _: lambda self: True)
