"""SOutput: ids, epochs, undos and ends of corrections."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from boreal.model.frames import Boundary, Data
from reconcile.events import Append, Send
from reconcile.instance import Instance
from reconcile.soutput import SOutput
from simulation.mutants.registry import Patch, caught_by, mutant
from sunion.buckets import bucket_end


@mutant
def skip_rec_done(patch: Patch) -> None:
    """The end of a correction is not written."""

    def make(original: Any) -> Any:
        def end_correction(self: SOutput) -> Any:
            return [effect for effect in original(self) if type(effect.frame).__name__ != "RecDone"]

        return end_correction

    patch(SOutput, "end_correction", make)


@mutant
def undo_one_too_many(patch: Patch) -> None:
    """UNDO revokes the last stable tuple too."""

    def make(original: Any) -> Any:
        def revoke(self: SOutput) -> Any:
            effects = original(self)
            return [replace(e, frame=replace(e.frame, last_id=max(e.frame.last_id - 1, -1))) for e in effects]

        return revoke

    patch(SOutput, "_revoke", make)


@mutant
def forget_to_undo(patch: Patch) -> None:
    """Corrections are written without the UNDO before them."""

    def make(_: Any) -> Any:
        def revoke(self: SOutput) -> Any:
            self.is_provisional = False
            for track in self.all_tracks:
                track.tentative = 0
            return []

        return revoke

    patch(SOutput, "_revoke", make)


@mutant
def keep_the_epoch_at_undo(patch: Patch) -> None:
    """The epoch does not grow at an UNDO, so that two tentative tuples have the same identity (R2)."""

    def make(original: Any) -> Any:
        def revoke(self: SOutput) -> Any:
            before = self.epoch
            effects = original(self)
            self.epoch = before
            return [replace(effect, frame=replace(effect.frame, epoch=before)) for effect in effects]

        return revoke

    patch(SOutput, "_revoke", make)


@mutant
def count_tentative_ids_as_stable(patch: Patch) -> None:
    """Tentative tuples use up the ids of stable ones."""

    def make(original: Any) -> Any:
        def write_rows(self: SOutput, track: Any, rows: Any, step: Any) -> Any:
            effects = original(self, track, rows, step)
            if step.tentative:
                track.next_id += rows.num_rows
            return effects

        return write_rows

    patch(SOutput, "_write_rows", make)


@mutant
def repeat_after_restart(patch: Patch) -> None:
    """A new incarnation ignores the rows that its log already holds, and writes them again."""

    def make(original: Any) -> Any:
        return lambda self, made, written, *rest: original(self, made, {}, *rest)

    patch(SOutput, "start", make)


@mutant
def drop_boundary_on_recovery(patch: Patch) -> None:
    """The stable boundaries of a correction are not written."""

    def make(original: Any) -> Any:
        def write_stable(self: SOutput, track: Any, frame: Any) -> Any:
            if self.correcting and isinstance(frame, Boundary):
                return []
            return original(self, track, frame)

        return write_stable

    patch(SOutput, "_write_stable", make)


@caught_by("reconcile/test_instance.py", "test_a_live_branch_is_given_up_once_the_corrections_beside_it_have_outgrown_memory")
def keep_the_live_branch_beyond_memory(patch: Patch) -> None:
    """A live branch is kept although the corrections beside it have exceeded memory (R21)."""

    def make(original: Any) -> Any:
        def write_stable(self: SOutput, track: Any, frame: Any) -> Any:
            effects = original(self, track, frame)
            self.deferred_bytes = 0
            return effects

        return write_stable

    patch(SOutput, "_write_stable", make)


@caught_by("reconcile/test_soutput.py", "test_the_heartbeat_repeats_the_visible_stable_boundary_and_tells_the_state")
def promise_what_is_held_back(patch: Patch) -> None:
    """Heartbeats repeat the stable boundary of corrections that are still held back for a live branch."""

    def make(_: Any) -> Any:
        def note_boundary(self: SOutput, boundary: Boundary) -> None:
            self.stable_through, self.stable_ingest = boundary.time, boundary.ingest

        return note_boundary

    patch(SOutput, "_note_boundary", make)


@mutant
def show_corrections_in_the_old_epoch(patch: Patch) -> None:
    """Corrections that were held back keep the epoch from before their UNDO (R2)."""

    def make(_: Any) -> Any:
        def show_deferred(self: SOutput) -> Any:
            if self.deferred is None:
                return []
            held, self.deferred = self.deferred, None
            effects = self._revoke()
            for track, frame in held:
                effects += self._write_stable(track, frame)
                if isinstance(frame, Boundary):
                    self._note_boundary(frame)
            return effects

        return show_deferred

    patch(SOutput, "show_deferred", make)


@caught_by("reconcile/test_soutput.py", "test_a_new_failure_in_mid_correction_forces_rec_done_before_its_first_tentative_row")
def leave_a_correction_open(patch: Patch) -> None:
    """No REC_DONE separates a correction from a failure that begins during it (R18)."""

    def make(original: Any) -> Any:
        def emit(self: SOutput, outputs: Any, step: Any, *more: Any) -> Any:
            correcting = self.correcting
            if step.tentative and self.deferred is None:
                self.correcting = False
            effects = original(self, outputs, step, *more)
            self.correcting = correcting
            return effects

        return emit

    patch(SOutput, "emit", make)


@caught_by("reconcile/test_instance.py", "test_early_answers_stay_until_their_correction_is_complete")
def undo_early_answers_before_they_are_corrected(patch: Patch) -> None:
    """Early answers are undone at the rollback, and readers that delay some of them have nothing to give until the end of the
    correction."""

    def make(original: Any) -> Any:
        def roll_back(self: Instance, replay_from: int, keep_live: bool, defer: bool, *rest: Any) -> Any:
            return original(self, replay_from, keep_live, keep_live, *rest)

        return roll_back

    patch(Instance, "_roll_back", make)


@caught_by("reconcile/test_soutput.py", "test_repeats_are_dropped_over_a_second_mark_and_rollback")
def forget_what_was_written_at_a_rollback(patch: Patch) -> None:
    """After a ROLLBACK repeats are found by the ids that the state had made, and not by those in the log (R18)."""

    def make(original: Any) -> Any:
        def undo(self: SOutput, cause: str, defer: bool) -> Any:
            for track in self.all_tracks:
                track.written = track.next_id
            return original(self, cause, defer)

        return undo

    patch(SOutput, "undo", make)


@mutant
def begin_a_life_in_the_old_epoch(patch: Patch) -> None:
    """A new incarnation begins in the last epoch of the one before, so that two tentative tuples have the same identity (R2,
    R25)."""

    def make(original: Any) -> Any:
        def start(self: SOutput, made: Any, written: Any, epoch: int, written_to: Any) -> Any:
            return original(self, made, written, epoch - (self.origin.incarnation > 1), written_to)

        return start

    patch(SOutput, "start", make)


@caught_by("reconcile/test_soutput.py", "test_nothing_tentative_comes_where_the_life_before_was_stable")
def repeat_tentatively_what_a_life_before_gave(patch: Patch) -> None:
    """A new incarnation writes tentative rows for times for which its log already has stable rows."""

    def make(original: Any) -> Any:
        return lambda self, made, written, epoch, written_to: original(self, made, written, epoch, {})

    patch(SOutput, "start", make)


@caught_by("reconcile/test_soutput.py", "test_anchors_tell_what_the_state_has_made_and_not_what_the_log_holds")
def anchor_what_was_written(patch: Patch) -> None:
    """Anchors and checkpoints hold the ids in the log, and not those that the state has made (R26)."""

    def make(_: Any) -> Any:
        return lambda self: tuple((track.key, track.written) for track in self.all_tracks)

    patch(SOutput, "next_ids", make)


@caught_by("reconcile/test_soutput.py", "test_rows_that_no_record_holds_are_several_frames")
def say_the_bucket_of_the_first_row(patch: Patch) -> None:
    """A frame's t_max is the end of its first row's bucket, and not of its last one's (R4)."""

    def make(original: Any) -> Any:
        def write_piece(self: SOutput, track: Any, rows: Any, step: Any) -> Any:
            t_max = bucket_end(rows.column(0)[0].as_py(), self.bucket_us)
            effects = original(self, track, rows, step)
            return [replace(e, frame=replace(e.frame, t_max=t_max)) if isinstance(e.frame, Data) else e for e in effects]

        return write_piece

    patch(SOutput, "_write_piece", make)


@caught_by("reconcile/test_soutput.py", "test_tentative_rows_take_the_ids_after_the_last_stable_one_and_name_what_they_lack")
def name_nothing_as_missing(patch: Patch) -> None:
    """Tentative rows name neither the missing inputs nor the cause."""

    def make(original: Any) -> Any:
        def emit(self: SOutput, outputs: Any, step: Any, *more: Any) -> Any:
            return original(self, outputs, replace(step, missing=(), cause=""), *more)

        return emit

    patch(SOutput, "emit", make)


@caught_by("reconcile/test_soutput.py", "test_rows_go_to_the_partition_of_their_key_and_control_frames_to_all_with_its_own_ids")
def tell_no_end_to_other_partitions(patch: Patch) -> None:
    """Control frames go to the first partition only (R1)."""

    def make(_: Any) -> Any:
        def broadcast(self: SOutput, frame: Any) -> Any:
            return [Append(tracks[0].log, frame) for tracks in self.tracks.values()]

        return broadcast

    patch(SOutput, "_broadcast", make)


@caught_by("reconcile/test_soutput.py", "test_each_bucket_of_a_step_travels_with_an_ingest_of_its_own")
def count_ingest_from_the_newest_bucket(patch: Patch) -> None:
    """All rows of a step get the ingest time of its last bucket: downstream they seem younger than they are (R8)."""

    def make(original: Any) -> Any:
        def emit(self: SOutput, outputs: Any, step: Any, *more: Any) -> Any:
            return original(self, outputs, replace(step, ingest=((step.upto, step.ingest[-1][1]),)), *more)

        return emit

    patch(SOutput, "emit", make)


@caught_by("reconcile/test_instance.py", "test_a_silent_port_is_found_out_before_its_third_boundary_is_due_and_said_at_once")
def say_nothing_of_a_new_state(patch: Patch) -> None:
    """A change of state is sent only with the next boundary or heartbeat, and not at once (R10)."""

    def make(original: Any) -> Any:
        def become(self: Instance, state: Any, now: int, effects: list[Any]) -> None:
            told: list[Any] = []
            original(self, state, now, told)
            effects += [effect for effect in told if not isinstance(effect, Append | Send)]

        return become

    patch(Instance, "_become", make)


@caught_by("reconcile/test_soutput.py", "test_the_heartbeat_repeats_the_visible_stable_boundary_and_tells_the_state")
def give_no_sign_of_life(patch: Patch) -> None:
    """An instance whose input is idle writes no boundary: its readers believe that it is dead (R24)."""
    patch(SOutput, "heartbeat", lambda _: lambda self, state, lacking, now: [])
