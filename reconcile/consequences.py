"""What is to follow from an order's answer, as data: what is pending can be printed, and compared."""

from __future__ import annotations

from dataclasses import dataclass

from sunion.steps import Step


@dataclass(frozen=True, slots=True)
class EmitRows:
    """The answer's rows are this step's, and go out as its output. Its input rows are not kept."""

    step: Step


@dataclass(frozen=True, slots=True)
class StoreCopy:
    """The copy of the state goes to the store under a number; all input before `time`, an event time, is in it."""

    number: int
    time: int


@dataclass(frozen=True, slots=True)
class UndoTentative:
    """The state is back at the mark: the tentative results that came before the rollback are undone. cause: the failure's id;
    keep_live: tentative output goes on beside the correction (R21)."""

    cause: str
    keep_live: bool


@dataclass(frozen=True, slots=True)
class EndCorrection:
    """The correction is complete."""


Consequence = EmitRows | StoreCopy | UndoTentative | EndCorrection
