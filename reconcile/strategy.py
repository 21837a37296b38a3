"""What a mode means for places in the input: known where the orders are given, without the state (R19, R20)."""

from __future__ import annotations

from dataclasses import dataclass

from boreal.query.spec import Mode
from operators.graph import Graph


@dataclass(slots=True)
class Strategy:
    """periodic: copies are made on a schedule, and not at MARK. copied_at: the input time of the last copy."""

    graph: Graph
    mode: Mode
    periodic: bool = False
    copied_at: int = 0

    @property
    def copies_at_mark(self) -> bool:
        return self.mode is Mode.CHECKPOINT_REDO and not self.periodic

    def replay_from(self, mark: int) -> int:
        """From which input time on rows must be given again after a rollback to the mark."""
        if self.mode is Mode.UNDO_REDO:
            return min(self.graph.needs(mark), mark)
        return self.copied_at if self.mode is Mode.CHECKPOINT_REDO and self.periodic else mark
