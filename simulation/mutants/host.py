"""The operator host: marks, rollbacks and overlays."""

from __future__ import annotations

from typing import Any

from boreal.model.frames import INFINITY
from boreal.query.spec import Mode
from operators.graph import FragmentGraph, GraphState
from reconcile.host import Host
from reconcile.strategy import Strategy
from simulation.mutants.registry import Patch, caught_by, mutant
from sunion.sunion import SUnion


@mutant
def restore_wrong_checkpoint(patch: Patch) -> None:
    """ROLLBACK restores an empty state instead of the copy that was made at MARK."""

    def make(original: Any) -> Any:
        def roll_back(self: Host, keep_live: bool) -> None:
            original(self, keep_live)
            if self.mode is Mode.CHECKPOINT_REDO:
                self.state = self.graph.empty()

        return roll_back

    patch(Host, "roll_back", make)


@mutant
def go_on_from_the_tentative_state(patch: Patch) -> None:
    """ROLLBACK keeps the state after the tentative steps."""

    def make(original: Any) -> Any:
        def roll_back(self: Host, keep_live: bool) -> None:
            state = self.live or self.state
            original(self, keep_live)
            if self.mode is Mode.CHECKPOINT_REDO:
                self.state = state

        return roll_back

    patch(Host, "roll_back", make)


@mutant
def overlay_leaks_into_base(patch: Patch) -> None:
    """Tentative steps write to the state itself, and not to an overlay."""
    patch(GraphState, "overlay", lambda _: lambda self: self)
    patch(GraphState, "absorb", lambda _: lambda self, child: None)


@mutant
def rebuild_from_the_mark_only(patch: Patch) -> None:
    """undo_redo rebuilds state from the mark on, without the rows of open windows before it (R20)."""

    def make(original: Any) -> Any:
        def replay_from(self: Strategy, mark: int) -> int:
            return mark if self.mode is Mode.UNDO_REDO else int(original(self, mark))

        return replay_from

    patch(Strategy, "replay_from", make)


@mutant
def forget_the_redone_state(patch: Patch) -> None:
    """When a correction beside a live branch is complete, its state is dropped."""

    def make(_: Any) -> Any:
        def redone(self: Host) -> None:
            self.redo = self.live = None

        return redone

    patch(Host, "redone", make)


@caught_by("reconcile/test_host.py", "test_a_live_branch_gives_nothing_of_the_correction_beside_it")
def redo_into_the_state_itself(patch: Patch) -> None:
    """A correction beside a kept live branch changes the state that this branch reads (R21)."""

    def make(original: Any) -> Any:
        def step(self: Host, step: Any) -> Any:
            if step.tentative or self.redo is None:
                return original(self, step)
            return self.graph.step(self.state, step.batches, step.upto)

        return step

    patch(Host, "step", make)


@caught_by("reconcile/test_host.py", "test_an_overlay_stays_live_while_its_base_is_redone")
def go_on_without_the_live_branch(patch: Patch) -> None:
    """A lone replica does not keep its live branch during a correction by overlay_redo (R21)."""

    def make(original: Any) -> Any:
        return lambda self, now, replay_from, keep_live: original(self, now, replay_from, False)

    def give(original: Any) -> Any:
        return lambda self, keep_live: original(self, False)

    patch(SUnion, "roll_back", make)
    patch(Host, "roll_back", give)


@caught_by("reconcile/test_host.py", "test_only_checkpoint_redo_copies_the_state_at_a_mark")
def redo_from_the_mark_after_an_older_copy(patch: Patch) -> None:
    """With periodic checkpoints rows are replayed from the mark on, and not from the copy that is restored (R19)."""

    def make(original: Any) -> Any:
        def replay_from(self: Strategy, mark: int) -> int:
            return int(original(self, mark)) if self.mode is Mode.UNDO_REDO else mark

        return replay_from

    patch(Strategy, "replay_from", make)


@mutant
def rebuild_for_the_last_operator_only(patch: Patch) -> None:
    """The needs of operators do not add up along the graph: a rebuild begins too late (R20)."""

    def make(_: Any) -> Any:
        return lambda self, time: max(min((o.needs(time) for o in self.operators.values()), default=time), -INFINITY)

    patch(FragmentGraph, "needs", make)
