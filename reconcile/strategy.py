"""From where input rows must be processed again after a rollback, for each mode (R19, R20).

The instance that gives the orders computes this without the state, because the state may be in another process.
"""

from __future__ import annotations

from dataclasses import dataclass

from boreal.query.spec import Mode
from operators.graph import FragmentGraph


@dataclass(slots=True)
class Strategy:
    """The mode of an instance, and the place of its last copy."""

    graph: FragmentGraph
    """The DAG of the fragment."""
    mode: Mode
    """The way to carry out MARK and ROLLBACK."""
    periodic: bool = False
    """Whether copies are made periodically, and not at MARK."""
    copied_at: int = 0
    """Event time. The last copy contains all input rows before it."""
    _needed: tuple[int, int] | None = None
    """The last (mark, event time) of `replay_from` in undo/redo, which is asked for at every tick."""

    @property
    def copies_at_mark(self) -> bool:
        """Whether the state is copied at MARK."""
        return self.mode is Mode.CHECKPOINT_REDO and not self.periodic

    def replay_from(self, mark: int) -> int:
        """The event time from which rows must be processed again after a rollback to the mark."""
        if self.mode is Mode.UNDO_REDO:
            if self._needed is None or self._needed[0] != mark:
                self._needed = mark, min(self.graph.needs(mark), mark)
            return self._needed[1]
        return self.copied_at if self.mode is Mode.CHECKPOINT_REDO and self.periodic else mark
