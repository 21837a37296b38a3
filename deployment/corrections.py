"""What happened between the detection of a failure and the end of its correction, of one instance.

Pure: events and the time in, what is known at the end out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from boreal.model.frames import State
from reconcile.events import InstanceId


@dataclass(frozen=True, slots=True)
class Correction:
    """A correction that is complete. Clock values in microseconds; detected_at <= redo_at <= done_at."""

    detected_at: int
    """When the instance left STABLE; when the redo began, if it never did, as after early answers."""
    tentative_at: int | None
    """When it first answered tentatively since the last correction, be it early; None if it did not."""
    missing: tuple[str, ...]
    """The inputs that the first tentative answer lacked."""
    redo_at: int
    """When the failure had healed and the redo began."""
    done_at: int
    """When all was corrected."""
    rows: int
    """The input rows that were processed again."""
    checkpoint_bytes: int
    """The size of the last copy of the state."""


TellCorrection = Callable[[str, str, InstanceId, Correction], None]
"""Called after a correction, with the query, its mode and the instance."""


def tell_nobody(query: str, mode: str, who: InstanceId, correction: Correction) -> None:
    """A TellCorrection that does nothing."""


class CorrectionHistory:
    """Follows one instance."""

    def __init__(self) -> None:
        self._detected_at: int | None = None
        self._tentative_at: int | None = None
        self._missing: tuple[str, ...] = ()

    def enter(self, state: State | None, now: int) -> None:
        """The instance enters a state; None if it is dead. A new incarnation begins without what the last one knew."""
        if state is State.UP_FAILURE and self._detected_at is None:
            self._detected_at = now
        elif state in (State.STABLE, State.RECOVERING, None):
            self._forget()

    def answer_tentatively(self, missing: tuple[str, ...], now: int) -> None:
        """The first tentative answer since the last correction."""
        if self._tentative_at is None:
            self._tentative_at, self._missing = now, missing

    def end(self, redo_at: int, rows: int, checkpoint_bytes: int, now: int) -> Correction:
        """A correction is complete."""
        detected_at = redo_at if self._detected_at is None else min(self._detected_at, redo_at)
        found = Correction(detected_at, self._tentative_at, self._missing, redo_at, now, rows, checkpoint_bytes)
        self._forget()
        return found

    def _forget(self) -> None:
        self._detected_at, self._tentative_at, self._missing = None, None, ()
