"""The changes that a corrected stream returns: rows, revocations and boundaries."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from boreal.model.errors import BorealError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stable(Generic[T]):
    """A row that is final."""

    id: int
    """The number of the row in the stable output, from 0 without gaps. It is the same at every site."""
    data: T
    """The row, as the reader's model."""
    key: Any
    """The value of the key column; a dict for several key columns, None for none."""
    event_time: datetime
    """The event time of the row."""
    site: str
    """The site that the row was read from; '' if there is only one."""
    ingest_ms: float
    """When the last input that the row needed was logged, in milliseconds since the Unix epoch."""
    emitted_ms: float
    """When the egress wrote the row, in milliseconds since the Unix epoch."""


@dataclass(frozen=True, slots=True)
class Tentative(Generic[T]):
    """A row that is not final. A later Undo revokes it; a corrected row follows, if there is one."""

    data: T
    """The row, as the reader's model."""
    key: Any
    """The key, as in `Stable.key`."""
    event_time: datetime
    """The event time of the row."""
    site: str
    """The site that the row was read from; '' if there is only one."""
    ingest_ms: float
    """When the last available input that the row needed was logged, in milliseconds since the Unix epoch."""
    emitted_ms: float
    """When the egress wrote the row, in milliseconds since the Unix epoch."""
    missing_inputs: tuple[str, ...]
    """The names of the inputs that were missing."""
    cause: str | None
    """The id of the failure; 'early' if no input was missing."""


@dataclass(frozen=True, slots=True)
class Undo(Generic[T]):
    """All tentative rows so far are revoked."""

    revoked: tuple[Tentative[T], ...]
    """The revoked rows, in their order."""
    cause: str | None
    """The id of the failure that is being corrected; None if there is none, as when the reader changes to another site."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """A watermark: no later row has an event time before `through`."""

    through: datetime
    """The event time of the boundary."""
    tentative: bool
    """Whether an Undo may revoke the boundary."""
    missing_inputs: tuple[str, ...]
    """The names of the inputs that were missing; () for a stable boundary."""
    cause: str | None
    """The id of the failure; None for a stable boundary."""


@dataclass(frozen=True, slots=True)
class RecDone:
    """The correction that the last Undo began is complete."""

    cause: str | None
    """The id of the failure that was corrected."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Stable rows that no site keeps any longer."""

    first_id: int
    """The id of the first missing row."""
    last_id: int
    """The id of the last missing row (inclusive)."""


Change = Stable[T] | Tentative[T] | Undo[T] | Boundary | RecDone | Missing


@dataclass
class MissingRows(BorealError):
    """Stable rows that the reader has not seen are no longer kept. To continue after them, iterate again."""

    first_id: int
    """The id of the first missing row."""
    last_id: int
    """The id of the last missing row (inclusive)."""

    def __str__(self) -> str:
        return f"the stable rows {self.first_id} to {self.last_id} are no longer kept; to continue after them, iterate again"
