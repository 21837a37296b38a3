"""Recovery, acknowledgements, trimming."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from embedded.world import World
from operators.graph import FragmentGraph
from reconcile.claims import Claims
from reconcile.host import Host
from reconcile.instance import Instance
from simulation.mutants.registry import Patch, caught_by, mutant
from sunion.tape import Tape


@mutant
def reuse_the_incarnation(patch: Patch) -> None:
    """A new incarnation writes under the number of the one before (R25)."""

    def make(original: Any) -> Any:
        def restarts(self: World, process: Any) -> Any:
            for place in original(self, process):
                yield replace(place, incarnation=max(place.incarnation - 1, 1))

        return restarts

    patch(World, "_restarts", make)


@mutant
def trim_too_early(patch: Patch) -> None:
    """An instance acknowledges the rows that it has received, and not those that it no longer needs (R26)."""

    def make(_: Any) -> Any:
        def acknowledged(self: Claims, has_partners: bool) -> Any:
            return tuple((link.port.key, link.port.tape.next_id) for link in self.links)

        return acknowledged

    patch(Claims, "acknowledged", make)


@mutant
def trim_to_the_fastest_reader(patch: Patch) -> None:
    """A log is trimmed as soon as one of its readers no longer needs a row."""

    def make(original: Any) -> Any:
        def acknowledge(self: World, who: Any, positions: Any) -> None:
            for key, first_id in positions:
                for reader in self.claims[key]:
                    self.claims[key][reader] = max(self.claims[key][reader], first_id)
            original(self, who, positions)

        return acknowledge

    patch(World, "_acknowledge", make)


@mutant
def never_acknowledge(patch: Patch) -> None:
    """Instances never acknowledge rows: logs grow for ever."""
    patch(Claims, "acknowledged", lambda _: lambda self, has_partners: ())


@caught_by(
    "reconcile/test_instance.py",
    "test_the_inputs_of_a_checkpoint_are_let_go_once_its_upload_has_arrived_and_not_before",
)
def trim_before_the_store_has_it(patch: Patch) -> None:
    """A checkpoint counts as stored when its upload begins, although the store may be out of reach (R19)."""

    def make(original: Any) -> Any:
        def store(self: Claims, number: int, time: int, state: Any) -> Any:
            effect = original(self, number, time, state)
            self.note_stored(number)
            return effect

        return store

    patch(Claims, "store", make)


@mutant
def never_return_from_recovering(patch: Patch) -> None:
    """An instance that was away stays RECOVERING."""
    patch(Instance, "_maybe_return", lambda _: lambda self, now: None)


@mutant
def restart_without_the_state(patch: Patch) -> None:
    """A new incarnation begins at the position of its checkpoint, with an empty state."""
    patch(Host, "begin", lambda original: lambda self, state: original(self, None))


@mutant
def restart_at_the_anchor_itself(patch: Patch) -> None:
    """A new incarnation reads its inputs from the anchor on, and not from the oldest row that its windows need (R26)."""

    def make(original: Any) -> Any:
        def restarts(self: World, process: Any) -> Any:
            for place in original(self, process):
                skips = place.state is None
                yield replace(place, position=max(place.position, place.muted_until)) if skips else place

        return restarts

    patch(World, "_restarts", make)


@caught_by(
    "reconcile/test_instance.py",
    "test_the_inputs_of_a_checkpoint_are_let_go_once_its_upload_has_arrived_and_not_before",
)
def acknowledge_a_checkpoint_under_way(patch: Patch) -> None:
    """The inputs before a checkpoint are acknowledged before its upload has finished (R19, R26)."""

    def make(original: Any) -> Any:
        def acknowledged(self: Claims, has_partners: bool) -> Any:
            if self.graph.unbounded and has_partners and self.saved:
                return self.saved[max(self.saved)]
            return original(self, has_partners)

        return acknowledged

    patch(Claims, "acknowledged", make)


@caught_by(
    "reconcile/test_instance.py",
    "test_the_inputs_of_a_checkpoint_are_let_go_once_its_upload_has_arrived_and_not_before",
)
def believe_all_uploads_with_the_first(patch: Patch) -> None:
    """When one checkpoint has arrived in the store, later ones count as arrived too (R19)."""

    def make(original: Any) -> Any:
        return lambda self, number: original(self, max(self.saved, default=number))

    patch(Claims, "note_stored", make)


@caught_by("reconcile/test_instance.py", "test_rows_since_the_copy_that_a_rollback_returns_to_are_not_let_go")
def acknowledge_what_the_copy_needs(patch: Patch) -> None:
    """With periodic checkpoints the rows since the copy are acknowledged although a rollback would need them (R26)."""

    def make(original: Any) -> Any:
        def acknowledged(self: Claims, has_partners: bool) -> Any:
            copied, self.copied = self.copied, ()
            inputs = original(self, has_partners)
            self.copied = copied
            return inputs

        return acknowledged

    patch(Claims, "acknowledged", make)


@caught_by("reconcile/test_instance.py", "test_what_is_held_back_beside_a_live_branch_is_not_acknowledged_before_it_is_shown")
def acknowledge_what_is_held_back(patch: Patch) -> None:
    """Corrections that are still held back for a live branch count as written: their inputs are acknowledged (R26)."""

    def make(original: Any) -> Any:
        def anchor(self: Claims, time: int, next_ids: Any) -> Any:
            made = original(self, time, next_ids)
            self.shown = self.made
            return made

        return anchor

    patch(Claims, "anchor", make)


@caught_by("reconcile/test_instance.py", "test_a_lone_checkpoint_lets_no_input_go")
def trust_a_lone_checkpoint(patch: Patch) -> None:
    """The inputs of state that windows cannot rebuild are acknowledged although no partner has another checkpoint (R26)."""
    patch(Claims, "acknowledged", lambda original: lambda self, has_partners: original(self, True))


@mutant
def anchor_at_the_time_itself(patch: Patch) -> None:
    """A restart from an anchor reads from its own time on, and not from the oldest row that open windows need (R26)."""
    patch(Claims, "anchor", _without_needs)


@caught_by("reconcile/test_instance.py", "test_an_undo_makes_its_state_from_the_rows_of_open_windows_and_so_keeps_their_places")
def store_an_undo_without_its_windows(patch: Patch) -> None:
    """Under undo_redo a restart from a checkpoint does not know where the rows of open windows begin (R20)."""
    patch(Claims, "store", _without_needs)


def _without_needs(original: Any) -> Any:
    def without(self: Claims, *given: Any) -> Any:
        graph, self.graph = self.graph, _GraphWithoutNeeds(self.graph.unbounded)
        made = original(self, *given)
        self.graph = graph
        return made

    return without


class _GraphWithoutNeeds(FragmentGraph):
    """A graph whose operators need no earlier rows."""

    def __init__(self, unbounded: bool) -> None:
        self.unbounded = unbounded

    def needs(self, time: int) -> int:
        return time


@caught_by("reconcile/test_instance.py", "test_healed_it_corrects_before_it_sends_more_that_is_tentative")
def return_before_having_caught_up(patch: Patch) -> None:
    """An instance that was away is STABLE again before it has read what it missed (R12)."""

    def make(original: Any) -> Any:
        def maybe_return(self: Instance, now: int) -> None:
            original(self, now)
            self.is_away = False

        return maybe_return

    patch(Instance, "_maybe_return", make)


@caught_by("reconcile/test_instance.py", "test_when_all_inputs_return_at_once_it_was_itself_away")
def notice_no_absence(patch: Patch) -> None:
    """An instance that was stopped or cut off for long does not notice that it was away (R12)."""

    def make(original: Any) -> Any:
        def note_return(self: Instance, link: Any, candidate: Any, end: int, now: int) -> None:
            away = self.is_away, self.away_until
            original(self, link, candidate, end, now)
            self.is_away, self.away_until = away

        return note_return

    patch(Instance, "_note_return", make)


@caught_by("reconcile/test_instance.py", "test_a_log_that_lacks_rows_is_left_for_another_and_not_asked_again_for_a_while")
def wait_for_a_log_that_lacks_rows(patch: Patch) -> None:
    """A log that lacks rows is asked again at once, instead of another one (R27)."""

    def make(original: Any) -> Any:
        def turn_away(self: Instance, log: Any, now: int, effects: list[Any]) -> None:
            original(self, log, now, effects)
            self.by_log[log].upstream.candidate(log).lacking_until = -1

        return turn_away

    patch(Instance, "_turn_away", make)


@caught_by("sunion/test_tape.py", "test_places_that_were_made_one_do_not_lead_before_what_was_acknowledged")
def ask_below_what_was_acknowledged(patch: Patch) -> None:
    """When places in a log are merged, the result may lie before the acknowledged row, and so be trimmed (I7)."""

    def make(original: Any) -> Any:
        def place_of(self: Tape, time: int) -> int:
            acknowledged, self.acknowledged = self.acknowledged, 0
            try:
                return int(original(self, time))
            finally:
                self.acknowledged = acknowledged

        return place_of

    patch(Tape, "place_of", make)


@mutant
def starve_while_events_wait(patch: Patch) -> None:
    """A Tick comes only when the inbox is empty: a backlog keeps an instance from all its other work."""
    patch(Instance, "is_starving", lambda _: lambda self, now: False)


@caught_by("reconcile/test_instance.py", "test_the_copy_is_made_while_buckets_wait_and_mark_makes_none")
def copy_at_the_deadline(patch: Patch) -> None:
    """checkpoint_redo copies its state at MARK, when the first bucket is due, and not while it waits."""
    patch(Instance, "_copy_ahead_at", lambda _: lambda self: None)


@caught_by(
    "reconcile/test_instance.py",
    "test_who_takes_longer_to_copy_than_the_interval_begins_the_next_copy_an_interval_after_the_last",
)
def copy_again_before_the_last_copy_is_done(patch: Patch) -> None:
    """Periodic copies begin at a fixed interval, even if a copy takes longer than that (R19)."""

    def make(original: Any) -> Any:
        def maybe_checkpoint(self: Instance, now: int, effects: list[Any]) -> None:
            original(self, now, effects)
            self.checkpoint_at = min(self.checkpoint_at, now + (self.plan.checkpoint_interval_us or 0))

        return maybe_checkpoint

    patch(Instance, "_maybe_checkpoint", make)


@caught_by("reconcile/test_instance.py", "test_corrections_that_are_held_back_are_no_sign_of_life")
def take_what_is_held_back_for_a_sign_of_life(patch: Patch) -> None:
    """An instance that corrects beside a kept live branch writes no boundary while the corrections are held back (R21,
    R24)."""

    def make(original: Any) -> Any:
        def emit(self: Instance, step: Any, answer: Any, now: int, effects: list[Any]) -> None:
            original(self, step, answer, now, effects)
            self.boundary_at = now + self.plan.sign_of_life_us

        return emit

    patch(Instance, "_emit", make)
