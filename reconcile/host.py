"""The operator host. It runs the DAG of a fragment step by step, and executes MARK and ROLLBACK by one of three strategies.

- checkpoint_redo copies all state at MARK and restores the copy at ROLLBACK (DPC, 'Checkpoint/redo'). With periodic
  checkpoints it restores the last one instead, and the rows since then are processed again with their output suppressed.
- undo_redo saves nothing at MARK. At ROLLBACK it clears the state, which is rebuilt from the oldest input that the state
  depends on (DPC, 'Undo/redo': stream markers).
- overlay_redo makes tentative steps write to an overlay on the frozen state, and drops the overlay at ROLLBACK.

`reconcile.strategy` says from where rows must be processed again. It needs no state for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import assert_never

import pyarrow as pa

from boreal.query.spec import Mode
from operators.graph import FragmentGraph, GraphState
from reconcile.orders import Answer, Begin, Copy, DropLive, EndRedo, Order, RollBack, SetMark
from sunion.steps import Step


@dataclass(slots=True)
class Host:
    """The operator state of one instance."""

    graph: FragmentGraph
    """The DAG of the fragment."""
    mode: Mode
    """The strategy."""
    state: GraphState = field(init=False)
    """The state that stable steps work on. While `redo` exists it stays as it was at the mark."""
    live: GraphState | None = None
    """The state that tentative steps work on; None if there is no live branch."""
    redo: GraphState | None = None
    """The state of a correction that runs beside the live branch, an overlay on `state` (R21); None otherwise."""
    copy: bytes = b""
    """The last copy of the state, encoded; empty if there is none."""
    is_overlaid: bool = False
    """Whether `live` is an overlay on `state`."""

    def __post_init__(self) -> None:
        self.state = self.graph.empty()

    def obey(self, order: Order) -> Answer:
        """Execute an order. CorruptError if a `Begin` has bytes that are not a state of this fragment."""
        match order:
            case Step():
                return Answer(self.step(order))
            case Begin(_, mode, _, state):
                self.mode = mode
                self.begin(state)
            case Copy():
                self.checkpoint()
                return Answer(copied=len(self.copy), state=self.copy)
            case SetMark(number, overlaid):
                self.mark(number is not None, overlaid)
                if number is not None:
                    return Answer(copied=len(self.copy), state=self.copy)
            case RollBack(keep_live):
                self.roll_back(keep_live)
            case EndRedo():
                self.redone()
            case DropLive():
                self.live = None
            case _:
                assert_never(order)
        return Answer()

    def begin(self, state: bytes | None) -> None:
        """Start from a stored state, or from the empty state if there is none."""
        self.state = self.graph.empty() if state is None else self.graph.decode(state)
        self.live = self.redo = None
        self.copy = b""

    def step(self, step: Step) -> Mapping[str, pa.RecordBatch]:
        """Run one step on its branch, and return the output rows by the name of the operator that made them."""
        if step.tentative:
            assert self.live is not None, "a tentative step comes after a MARK"
            return self.graph.step(self.live, step.batches, step.upto)
        return self.graph.step(self.redo or self.state, step.batches, step.upto)

    def checkpoint(self) -> bytes:
        """Copy all state. The copy stays in memory, and is returned for the checkpoint store."""
        self.copy = self.state.encode()
        return self.copy

    @property
    def held_bytes(self) -> tuple[int, int]:
        """(state, extra), estimates in bytes: the memory of the state, and of all that is kept beside it, which is the copy
        and the overlays."""
        overlays = [layer for layer in (self.live, self.redo) if layer is not None and layer is not self.state]
        return self.state.nbytes(), len(self.copy) + sum(layer.nbytes() for layer in overlays)

    def mark(self, copies: bool, overlaid: bool = False) -> None:
        """MARK: make it possible to return to the current state."""
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
        """The correction is complete: adopt the redone state, and drop the live branch."""
        if self.redo is not None:
            self.state.absorb(self.redo)
            self.redo = None
        self.live = None
