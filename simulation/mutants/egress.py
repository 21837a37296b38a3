"""The egress: the changelog that clients read, and the topics that it is written to.

The topics' classes are imported in the mutants' functions, because the simulator runs without Kafka's client.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import formats.changelog
from formats.changelog import Changelog, ResultHistory
from simulation.mutants.registry import Patch, caught_by, mutant


@mutant
def hold_what_was_undone(patch: Patch) -> None:
    """A client still holds the tentative rows that an UNDO has revoked."""

    def make(original: Any) -> Any:
        def revoke(self: Changelog, *given: Any) -> Any:
            outstanding = self._outstanding
            control = original(self, *given)
            self._outstanding = outstanding
            return control

        return revoke

    patch(Changelog, "_revoke", make)


@caught_by("formats/test_changelog.py", "test_a_correction_replaces_what_was_tentative")
def undo_only_at_a_start(patch: Patch) -> None:
    """The client gets no undo for an UNDO."""

    def make(original: Any) -> Any:
        def revoke(self: Changelog, epoch: int, cause: str, *given: Any) -> Any:
            self._outstanding = 0
            return None

        return revoke

    patch(Changelog, "_revoke", make)


@caught_by("formats/test_changelog.py", "test_stable_rows_that_are_gone_are_skipped_by_the_start_that_says_so")
def skip_ids_in_silence(patch: Patch) -> None:
    """A START that skips stable ids does not advance the client's next id (R27)."""

    def make(original: Any) -> Any:
        def take_start(self: Changelog, frame: Any, *given: Any) -> Any:
            return original(self, replace(frame, next_id=0), *given)

        return take_start

    patch(Changelog, "_take_start", make)


@caught_by("formats/test_changelog.py", "test_a_correction_replaces_what_was_tentative")
def undo_after_the_last_record(patch: Patch) -> None:
    """A client's undo revokes the rows after the last record, and not those after the last stable one."""

    def make(original: Any) -> Any:
        def control(self: Changelog, kind: str, fields: dict[str, object], *given: Any) -> Any:
            return original(self, kind, {"after_seq": self._seq} if kind == "undo" else fields, *given)

        return control

    patch(Changelog, "_control", make)


@caught_by("formats/test_changelog.py", "test_a_correction_replaces_what_was_tentative")
def undo_in_the_epoch_before(patch: Patch) -> None:
    """A client's undo has the epoch that it ends, and not the one that it begins (R2)."""

    def make(original: Any) -> Any:
        def control(self: Changelog, kind: str, *given: Any) -> Any:
            self._epoch -= kind == "undo"
            made = original(self, kind, *given)
            self._epoch += kind == "undo"
            return made

        return control

    patch(Changelog, "_control", make)


@caught_by("formats/test_changelog.py", "test_an_undo_revokes_tentative_boundaries")
def keep_the_clients_tentative_boundary(patch: Patch) -> None:
    """After an undo the client does not get tentative boundaries that it had before it."""

    def make(original: Any) -> Any:
        def revoke(self: Changelog, *given: Any) -> Any:
            through = self._through[True]
            control = original(self, *given)
            self._through[True] = through
            return control

        return revoke

    patch(Changelog, "_revoke", make)


@caught_by("formats/test_changelog.py", "test_an_undo_of_nothing_is_not_written_nor_is_its_end")
def end_what_was_not_undone(patch: Patch) -> None:
    """The client gets the end of a correction whose undo it did not get."""

    def make(original: Any) -> Any:
        def take_rec_done(self: Changelog, *given: Any) -> Any:
            self._correcting = True
            return original(self, *given)

        return take_rec_done

    patch(Changelog, "_take_rec_done", make)


@caught_by("formats/test_changelog.py", "test_a_restarted_egress_begins_with_an_undo_even_of_nothing")
def resume_without_an_undo(patch: Patch) -> None:
    """A restarted egress does not begin with an undo if it has no tentative rows (R28)."""

    def make(original: Any) -> Any:
        def take_start(self: Changelog, *given: Any) -> Any:
            self._is_resumed = False
            return original(self, *given)

        return take_start

    patch(Changelog, "_take_start", make)


@caught_by("formats/test_changelog.py", "test_only_new_rows_count_for_the_delay")
def time_corrections_too(patch: Patch) -> None:
    """A correction's delay counts as that of a new row (R14)."""
    patch(ResultHistory, "is_new", lambda _: lambda self, t_max, ingest: np.ones(len(t_max), bool))


@caught_by("formats/test_changelog.py", "test_only_new_rows_count_for_the_delay")
def time_from_the_last_ingest(patch: Patch) -> None:
    """A row's delay counts from the newest ingest time of its frame (R8)."""

    def make(original: Any) -> Any:
        return lambda ingest, times: original(ingest[-1:], times)

    patch(formats.changelog, "_ingest_of", make)


@caught_by("formats/test_changelog.py", "test_a_tentative_boundary_names_what_it_lacks_and_why")
def name_no_missing_input(patch: Patch) -> None:
    """A client's tentative boundary does not say which inputs it lacks."""

    def make(original: Any) -> Any:
        return lambda self, frame, *given: original(self, replace(frame, missing=()), *given)

    patch(Changelog, "_take_boundary", make)


@caught_by("services/test_egress_out.py", "test_rows_that_wait_for_q_stable_take_no_memory")
def confirm_before_q_stable_has_it(patch: Patch) -> None:
    """A frame counts as delivered when q.out has it, although q.stable lacks its rows: the inputs may be acknowledged."""
    from services.egress.out import OutTopic

    patch(OutTopic, "_is_safe", lambda _: lambda self, sent: sent.is_given)


@caught_by("services/test_egress_out.py", "test_a_record_that_came_to_lie_elsewhere_ends_the_process_and_is_not_given")
def write_beside_a_later_life(patch: Patch) -> None:
    """An egress whose record got an unexpected offset continues beside the later incarnation that took its offset (R25)."""
    from services.egress.out import OutTopic

    def make(original: Any) -> Any:
        def give(self: OutTopic, sent: Any, metadata: Any) -> None:
            original(self, sent, metadata._replace(offset=-1))

        return give

    patch(OutTopic, "_give", make)


@caught_by("services/test_egress_out.py", "test_a_boundary_with_an_anchor_says_where_the_next_life_goes_on")
def tell_the_next_life_no_place(patch: Patch) -> None:
    """A stable boundary of q.out has no anchor and no place: a restart begins at the beginning (R28)."""
    from services.egress.out import OutTopic

    def make(original: Any) -> Any:
        return lambda self, control, frame, emitted_us: original(self, control, None, emitted_us)

    patch(OutTopic, "_send_control", make)


@caught_by("services/test_egress_stable.py", "test_rows_that_q_stable_has_already_are_passed_over")
def repeat_what_q_stable_has(patch: Patch) -> None:
    """Rows that a former incarnation has committed are committed to q.stable again (R28)."""
    from services.egress.stable import StableTopic

    def make(original: Any) -> Any:
        def commit(self: StableTopic, rows: Any) -> None:
            self.next_id = rows[0].id if rows else self.next_id
            original(self, rows)

        return commit

    patch(StableTopic, "_commit", make)


@caught_by("services/test_egress_stable.py", "test_what_memory_does_not_hold_is_read_from_q_out_in_its_place")
def drop_what_memory_does_not_hold(patch: Patch) -> None:
    """Rows that wait for q.stable above the bound of memory are dropped, and not read again from q.out."""
    from services.egress.stable import StableTopic

    def make(original: Any) -> Any:
        def put(self: StableTopic, rows: Any, offset: int) -> None:
            is_behind = self._is_behind
            original(self, rows, offset)
            self._is_behind = is_behind

        return put

    patch(StableTopic, "put", make)


@caught_by("services/test_egress_stable.py", "test_rows_that_are_lost_are_counted")
def count_no_lost_rows(patch: Patch) -> None:
    """A gap in the ids of q.stable is not counted as lost rows (R27)."""
    from services.egress.stable import StableTopic

    def make(original: Any) -> Any:
        def commit(self: StableTopic, rows: Any) -> None:
            skipped = self.n_skipped
            original(self, rows)
            self.n_skipped = skipped

        return commit

    patch(StableTopic, "_commit", make)


@caught_by("services/test_egress_latest.py", "test_an_undo_puts_every_key_back_to_its_last_stable_row")
def leave_undone_rows_in_latest(patch: Patch) -> None:
    """q.latest still shows rows that were undone."""
    from services.egress.latest import LatestTopic

    patch(LatestTopic, "_revoke", lambda _: lambda self: self._unstable.clear())


@caught_by("services/test_egress_latest.py", "test_what_a_dead_life_writes_late_is_put_right")
def believe_the_last_record_of_a_key(patch: Patch) -> None:
    """A new incarnation trusts the last record of each key in q.latest, even if a zombie wrote it (R25)."""
    from services.egress.latest import LatestTopic

    def make(original: Any) -> Any:
        def read(self: LatestTopic) -> int:
            end = int(original(self))
            self._unstable.clear()
            return end

        return read

    patch(LatestTopic, "_read", make)


@caught_by("services/test_egress_latest.py", "test_a_life_that_dies_between_the_rows_of_a_frame_leaves_them_to_the_next")
def say_a_frame_is_there_with_its_first_row(patch: Patch) -> None:
    """The first row of a frame in q.latest says that the whole frame has had its effect."""
    from services.egress.latest import LatestTopic

    def make(original: Any) -> Any:
        def put_stable(self: LatestTopic, rows: Any, next_id: int) -> None:
            self.next_id = next_id
            original(self, rows, next_id)

        return put_stable

    patch(LatestTopic, "_put_stable", make)


@caught_by("services/test_egress_latest.py", "test_a_dead_life_writes_before_its_successor_does")
def look_for_no_other_life(patch: Patch) -> None:
    """An incarnation that writes nothing does not notice that another one has written q.latest."""
    from services.egress.latest import LatestTopic

    patch(LatestTopic, "look_for_others", lambda _: lambda self: None)


@caught_by("services/test_egress_tail.py", "test_what_a_dead_life_wrote_after_its_successor_is_void")
def follow_a_dead_life(patch: Patch) -> None:
    """A new incarnation continues from the records that a dead one wrote after its successor (R25)."""
    from services.egress.tail import _Fold

    def make(original: Any) -> Any:
        def take(self: _Fold, record: Any) -> None:
            self.incarnation = 0
            original(self, record)

        return take

    patch(_Fold, "take", make)


@caught_by("services/test_egress_tail.py", "test_rows_after_the_last_boundary_count_for_where_the_next_life_goes_on")
def go_on_from_the_last_boundary(patch: Patch) -> None:
    """A new incarnation continues from the last stable boundary, and ignores the records after it (R28)."""
    from services.egress.tail import _Fold

    patch(_Fold, "_after", lambda _: lambda self, place, fields: place)


@caught_by("services/test_egress_tail.py", "test_the_first_row_that_q_stable_lacks_is_found")
def lack_nothing(patch: Patch) -> None:
    """A new incarnation assumes that q.stable has all rows of q.out (R28)."""
    from services.egress.tail import _Fold

    def make(original: Any) -> Any:
        def take(self: _Fold, record: Any) -> None:
            original(self, record)
            self.lacking_from = record.offset + 1

        return take

    patch(_Fold, "take", make)


@caught_by("services/test_egress_delays.py", "test_what_took_longer_than_x_is_counted_for_good")
def forget_violations(patch: Patch) -> None:
    """Rows that took longer than X are counted only while their delays are kept."""
    from deployment.delay_window import DelayWindow

    def make(original: Any) -> Any:
        def forget(self: DelayWindow, now_us: int) -> None:
            original(self, now_us)
            if not self._kept:
                self.violations = 0

        return forget

    patch(DelayWindow, "_forget", make)
