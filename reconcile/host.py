"""The operator host: runs a fragment's DAG step by step, and obeys MARK and ROLLBACK by one of three strategies.

checkpoint_redo copies all state at MARK and copies it back at ROLLBACK (DPC, 'Checkpoint/redo'); with a periodic
checkpoint the last one serves instead, and what came since is redone with its output thrown away. undo_redo notes
nothing; at ROLLBACK it clears the state, which is rebuilt from the oldest input that it still depended on (DPC,
'Undo/redo': stream markers). overlay_redo lets tentative steps write to an overlay on the frozen state, and drops it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from boreal.spec import Mode
from operators.graph import Graph, GraphState
from sunion.steps import Step


@dataclass(slots=True)
class Host:
    """State of one instance: `state` is the one that the next stable step works on, `live` that of tentative steps."""

    graph: Graph
    mode: Mode
    state: GraphState = field(init=False)
    live: GraphState | None = None
    redo: GraphState | None = None
    copy: bytes = b""
    copy_time: int = 0
    periodic: bool = False

    def __post_init__(self) -> None:
        self.state = self.graph.empty()

    def load(self, blob: bytes) -> None:
        """Start from a stored state; CorruptError if it is not one of this fragment's."""
        self.state = self.graph.decode(blob)

    def step(self, step: Step) -> Mapping[str, pa.RecordBatch]:
        """Run one step on the branch that it belongs to; output rows by the name of what made them."""
        if step.tentative:
            assert self.live is not None, "a tentative step comes after a MARK"
            return self.graph.step(self.live, step.batches, step.upto)
        return self.graph.step(self.redo or self.state, step.batches, step.upto)

    def checkpoint(self, time: int) -> bytes:
        """Copy all state; the copy is kept in memory, and returned for the checkpoint store."""
        self.copy, self.copy_time = self.state.encode(), time
        return self.copy

    def mark(self, time: int) -> bytes | None:
        """MARK: returns the copy, where this strategy has just made one."""
        if self.mode is Mode.OVERLAY_REDO:
            self.live = self.state.overlay()
            return None
        made = None
        if self.mode is Mode.CHECKPOINT_REDO and not self.periodic:
            made = self.checkpoint(time)
        self.live = self.state
        return made

    def replay_from(self, mark: int) -> int:
        """From which input time on rows must be given again after a rollback to the mark."""
        if self.mode is Mode.CHECKPOINT_REDO:
            return self.copy_time
        if self.mode is Mode.OVERLAY_REDO:
            return mark
        return min(self.graph.needs(mark), mark)

    def roll_back(self, mark: int, keep_live: bool) -> int:
        """ROLLBACK to the mark: returns `replay_from`."""
        if self.mode is Mode.OVERLAY_REDO and keep_live:
            self.redo = self.state.overlay()
            return mark
        self.live = None
        if self.mode is Mode.CHECKPOINT_REDO:
            self.state = self.graph.decode(self.copy)
        elif self.mode is Mode.UNDO_REDO:
            self.state = self.graph.empty()
        return self.replay_from(mark)

    def redone(self) -> None:
        """The correction is complete: the redone state is the state, and the live branch is gone."""
        if self.redo is not None:
            self.state.absorb(self.redo)
            self.redo = None
        self.live = None
