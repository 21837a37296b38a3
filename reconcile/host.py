"""The operator host: runs a fragment's DAG step by step, and obeys MARK and ROLLBACK by one of three strategies.

checkpoint_redo copies all state at MARK and copies it back at ROLLBACK (DPC, 'Checkpoint/redo'); with a periodic
checkpoint the last one serves instead, and what came since is redone with its output thrown away. undo_redo notes
nothing; at ROLLBACK it clears the state, which is rebuilt from the oldest input that it still depended on (DPC,
'Undo/redo': stream markers). overlay_redo lets tentative steps write to an overlay on the frozen state, and drops it.
From where rows must be given again is for `reconcile.strategy` to say, which needs no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import assert_never

import pyarrow as pa

from boreal.query.spec import Mode
from operators.graph import Graph, GraphState
from reconcile.orders import Answer, Begin, Copy, DropLive, Mark, Order, Redone, RollBack
from sunion.steps import Step


@dataclass(slots=True)
class Host:
    """State of one instance: `state` is the one that the next stable step works on, `live` that of tentative steps;
    is_overlaid: that is an overlay on `state`."""

    graph: Graph
    mode: Mode
    state: GraphState = field(init=False)
    live: GraphState | None = None
    redo: GraphState | None = None
    copy: bytes = b""
    is_overlaid: bool = False

    def __post_init__(self) -> None:
        self.state = self.graph.empty()

    def obey(self, order: Order) -> Answer:
        """Do what an order says. CorruptError where a life is to begin from bytes that are not a state of this fragment."""
        match order:
            case Step():
                return Answer(self.step(order))
            case Begin(_, mode, _, state):
                self.mode = mode
                self.begin(state)
            case Copy():
                self.checkpoint()
                return Answer(copied=len(self.copy), state=self.copy)
            case Mark(number, overlaid):
                self.mark(number is not None, overlaid)
                if number is not None:
                    return Answer(copied=len(self.copy), state=self.copy)
            case RollBack(keep_live):
                self.roll_back(keep_live)
            case Redone():
                self.redone()
            case DropLive():
                self.live = None
            case _:
                assert_never(order)
        return Answer()

    def begin(self, state: bytes | None) -> None:
        """Start from a stored state, or from nothing."""
        self.state = self.graph.empty() if state is None else self.graph.decode(state)
        self.live = self.redo = None
        self.copy = b""

    def step(self, step: Step) -> Mapping[str, pa.RecordBatch]:
        """Run one step on the branch that it belongs to; output rows by the name of what made them."""
        if step.tentative:
            assert self.live is not None, "a tentative step comes after a MARK"
            return self.graph.step(self.live, step.batches, step.upto)
        return self.graph.step(self.redo or self.state, step.batches, step.upto)

    def checkpoint(self) -> bytes:
        """Copy all state; the copy is kept in memory, and returned for the checkpoint store."""
        self.copy = self.state.encode()
        return self.copy

    @property
    def held_bytes(self) -> tuple[int, int]:
        """About how much memory the state takes, and what is kept beside it to return to, or to be thrown away: a copy, and
        what was written to overlays."""
        overlays = [layer for layer in (self.live, self.redo) if layer is not None and layer is not self.state]
        return self.state.nbytes(), len(self.copy) + sum(layer.nbytes() for layer in overlays)

    def mark(self, copies: bool, overlaid: bool = False) -> None:
        """MARK: the state as it is now can be returned to."""
        if copies:
            self.checkpoint()
        self.is_overlaid = overlaid or self.mode is Mode.OVERLAY_REDO
        self.live = self.state.overlay() if self.is_overlaid else self.state

    def roll_back(self, keep_live: bool) -> None:
        """ROLLBACK to the mark, or to the last copy."""
        if self.mode is Mode.OVERLAY_REDO and keep_live:
            self.redo = self.state.overlay()
            return
        self.live = None
        if self.is_overlaid:
            return
        if self.mode is Mode.CHECKPOINT_REDO:
            self.state = self.graph.decode(self.copy)
        else:
            self.state = self.graph.empty()

    def redone(self) -> None:
        """The correction is complete: the redone state is the state, and the live branch is gone."""
        if self.redo is not None:
            self.state.absorb(self.redo)
            self.redo = None
        self.live = None
