"""What follows from the answer to an order, as data. Pending consequences can so be printed and compared."""

from __future__ import annotations

from dataclasses import dataclass

from sunion.steps import Step


@dataclass(frozen=True, slots=True)
class EmitRows:
    """Write the rows of the answer as the output of a step."""

    step: Step
    """The step, without its input rows."""


@dataclass(frozen=True, slots=True)
class StoreCopy:
    """Upload the copy of the state to the store."""

    number: int
    """The number of the checkpoint."""
    time: int
    """Event time. The copy contains all input rows before it."""


@dataclass(frozen=True, slots=True)
class UndoTentative:
    """The state is back at the mark: undo the tentative results that were written before the rollback."""

    cause: str
    """The id of the failure."""
    defer: bool
    """Whether readers keep the tentative results until the correction is complete (R16, R21)."""


@dataclass(frozen=True, slots=True)
class EndCorrection:
    """Complete the correction: write REC_DONE."""


Consequence = EmitRows | StoreCopy | UndoTentative | EndCorrection
