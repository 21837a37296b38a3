"""Ports: the stable prefix and the tentative suffix of a stream."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from boreal.model.frames import INFINITY, Data
from reconcile.instance import Instance
from reconcile.links import Link
from reconcile.rereading import Rereading
from simulation.mutants.registry import Patch, caught_by, mutant
from sunion.port import Port
from sunion.sunion import SUnion
from sunion.tape import Chunk, Tape


@mutant
def drop_rows_that_come_in_a_correction(patch: Patch) -> None:
    """A port drops the stable rows that arrive while the instance reconciles."""

    def make(original: Any) -> Any:
        def take_visible(self: Instance, link: Any, candidate: Any, frame: Any, now: int) -> None:
            if self.sunion.redoing and isinstance(frame, Data) and not frame.tentative:
                link.port.tape.next_id = max(link.port.tape.next_id, frame.first_id + frame.batch.num_rows)
                return
            original(self, link, candidate, frame, now)

        return take_visible

    patch(Instance, "_take_visible", make)


@mutant
def repeat_after_switch(patch: Patch) -> None:
    """A port takes stable rows again that it already has."""

    def make(original: Any) -> Any:
        def append(self: Tape, first_id: int, batch: Any, ingest: Any) -> Any:
            return original(self, max(first_id, self.next_id), batch, ingest)

        return append

    patch(Tape, "append", make)


@mutant
def repeat_tentative_after_switch(patch: Patch) -> None:
    """After a switch to another replica, tentative buckets that were already emitted are emitted again (R23)."""

    def make(original: Any) -> Any:
        def look_at_inputs(self: Instance, now: int, effects: list[Any]) -> None:
            before = [link.upstream.live.log for link in self.links]
            original(self, now, effects)
            if self.sunion.live is not None and before != [link.upstream.live.log for link in self.links]:
                self.sunion.live = self.sunion.base.fork()

        return look_at_inputs

    patch(Instance, "_look_at_inputs", make)


@mutant
def lose_the_live_tuples(patch: Patch) -> None:
    """Tentative rows of an upstream replica are dropped: the reader answers without them."""
    patch(Port, "take_tentative", lambda _: lambda self, frame: None)


@mutant
def keep_suffix_after_undo(patch: Patch) -> None:
    """The tentative rows of a port stay after their UNDO, and are emitted again among the corrections."""

    def keep(original: Any) -> Any:
        def take_boundary(self: Port, frame: Any, now: int) -> None:
            suffix, nbytes = list(self.suffix), self.suffix_nbytes
            original(self, frame, now)
            self.suffix, self.suffix_nbytes = suffix, nbytes

        return take_boundary

    def make(original: Any) -> Any:
        def take(self: SUnion, view: Any, at: int, since: int, upto: int, tentative: bool) -> Any:
            taken = original(self, view, at, since, upto, tentative)
            for chunk in () if tentative else self.ports[at].suffix:
                taken.add(chunk.between(since, upto), False, chunk.ingest)
            return taken

        return take

    patch(Port, "revoke", lambda _: lambda self, now: None)
    patch(Port, "take_boundary", keep)
    patch(SUnion, "_take", make)


@mutant
def take_tentative_as_stable(patch: Patch) -> None:
    """A tentative boundary counts as a stable one."""

    def make(original: Any) -> Any:
        return lambda self, frame, now: original(self, replace(frame, tentative=False), now)

    patch(Port, "take_boundary", make)


@caught_by("sunion/test_port.py", "test_tentative_rows_are_taken_beyond_the_highest_t_max_only")
def judge_tentative_repeats_by_boundaries_alone(patch: Patch) -> None:
    """Another replica's tentative rows are taken if no boundary had passed them, although rows had (R23)."""

    def make(original: Any) -> Any:
        def take_tentative(self: Port, frame: Any) -> None:
            t_max = self.t_max
            original(self, frame)
            self.t_max = t_max

        return take_tentative

    patch(Port, "take_tentative", make)


@caught_by("sunion/test_port.py", "test_tentative_rows_that_a_tentative_boundary_has_passed_are_not_taken")
def judge_tentative_repeats_by_rows_alone(patch: Patch) -> None:
    """A tentative boundary does not mark its buckets as given: rows for them are taken later (R23)."""

    def make(original: Any) -> Any:
        def take_boundary(self: Port, frame: Any, now: int) -> None:
            t_max = self.t_max
            original(self, frame, now)
            self.t_max = t_max

        return take_boundary

    patch(Port, "take_boundary", make)


@caught_by("sunion/test_port.py", "test_an_undo_revokes_tentative_rows_boundary_and_t_max")
def remember_what_was_undone(patch: Patch) -> None:
    """After an UNDO tentative rows are still compared with rows from before it: the next ones are not taken."""

    def make(original: Any) -> Any:
        def revoke(self: Port, now: int) -> None:
            t_max = self.t_max
            original(self, now)
            self.t_max = t_max

        return revoke

    patch(Port, "revoke", make)


@caught_by("sunion/test_port.py", "test_an_undo_revokes_tentative_rows_boundary_and_t_max")
def keep_the_boundary_after_undo(patch: Patch) -> None:
    """An UNDO revokes tentative rows, but not the tentative boundary (R3)."""

    def make(original: Any) -> Any:
        def revoke(self: Port, now: int) -> None:
            boundary = self.suffix_boundary
            original(self, now)
            self.suffix_boundary = boundary

        return revoke

    patch(Port, "revoke", make)


@caught_by("sunion/test_port.py", "test_the_end_of_a_stream_is_kept_apart_and_an_undo_takes_a_tentative_one_back")
def keep_a_tentative_end_after_undo(patch: Patch) -> None:
    """A stream whose tentative end was undone still counts as ended."""

    def make(original: Any) -> Any:
        def revoke(self: Port, now: int) -> None:
            ended = self.ended
            original(self, now)
            self.ended = ended

        return revoke

    patch(Port, "revoke", make)


@caught_by("sunion/test_tape.py", "test_only_rising_boundaries_count")
def let_stable_boundaries_fall(patch: Patch) -> None:
    """A stable boundary that is lower than the last one counts (R3)."""

    def make(_: Any) -> Any:
        def advance(self: Tape, boundary: int) -> bool:
            self.boundary = boundary
            return True

        return advance

    patch(Tape, "advance", make)


@caught_by(
    "sunion/test_sunion.py",
    "test_what_a_correction_has_ahead_of_its_boundary_is_not_answered_beside_its_tentative_version",
)
def read_two_branches_as_one(patch: Patch) -> None:
    """Stable rows of one replica count beside the tentative rows of another one, for the same bucket (R17, R23)."""
    patch(Port, "stable_counts_until", lambda _: property(lambda self: INFINITY))


@caught_by("reconcile/test_instance.py", "test_of_a_replica_that_is_read_for_its_corrections_no_tentative_row_is_taken")
def show_the_tentative_rows_of_a_correction(patch: Patch) -> None:
    """Tentative rows of a replica that is read for its corrections are taken too (R17)."""

    def make(original: Any) -> Any:
        def take_correction(self: Instance, port: Any, frame: Any, now: int) -> None:
            if isinstance(frame, Data) and frame.tentative:
                port.take_tentative(frame)
            original(self, port, frame, now)

        return take_correction

    patch(Instance, "_take_correction", make)


@caught_by("reconcile/test_instance.py", "test_rows_read_again_for_a_view_that_has_moved_since_are_of_no_use")
def give_rows_to_a_view_that_has_moved(patch: Patch) -> None:
    """Rows that were read again for a view are given to it although it has rolled back or ended since."""

    def make(original: Any) -> Any:
        def take(self: Rereading, answer: Any, now: int) -> None:
            for slot, (number, log, _) in list(self.under_way.items()):
                view = self._view(slot[0])
                if view is not None:
                    self.under_way[slot] = number, log, view.cursors[slot[1]]
            original(self, answer, now)

        return take

    patch(Rereading, "take", make)


@caught_by("reconcile/test_links.py", "test_a_replica_that_had_nothing_to_read_again_is_followed_by_the_next_within_reach")
def read_again_from_one_log_only(patch: Patch) -> None:
    """Rows are read again from the replica that is followed, although it does not have them."""

    def make(original: Any) -> Any:
        def log_to_read(self: Link, now: int) -> Any:
            self.read_turn = 0
            return original(self, now)

        return log_to_read

    patch(Link, "log_to_read", make)


@caught_by("reconcile/test_instance.py", "test_a_log_that_lacks_rows_is_left_for_another_and_not_asked_again_for_a_while")
def overlook_what_a_log_lacks(patch: Patch) -> None:
    """A reader does not notice that a log continues after the row that it needs next (R27)."""
    patch(Link, "lacks", lambda _: lambda self, frame: False)


@caught_by("sunion/test_tape.py", "test_no_rows_lie_between_a_time_and_an_earlier_one")
def read_between_a_time_and_one_before_it(patch: Patch) -> None:
    """If the end of a range of times is before its start, a chunk still returns rows for it."""

    def make(original: Any) -> Any:
        def between(self: Chunk, since: int, upto: int) -> Any:
            if since < upto or not self.ordered:
                return original(self, since, upto)
            first, last = np.searchsorted(self.times, (since, upto))
            return None if first == last else (self.batch.slice(first, last - first), self.times[first:last])

        return between

    patch(Chunk, "between", make)
