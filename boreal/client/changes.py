"""What a corrected stream tells its reader: rows, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from boreal.model.errors import BorealError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stable(Generic[T]):
    """A row that is final. ids rise by one, and are the same at every site.

    data: the row, as the reader's model. key: its key columns (a value for one, an object for several, None for none).
    ingest_ms, emitted_ms: milliseconds since the epoch, when the input that it waited for was logged, and when it left.
    """

    id: int
    data: T
    key: Any
    event_time: datetime
    site: str
    ingest_ms: float
    emitted_ms: float


@dataclass(frozen=True, slots=True)
class Tentative(Generic[T]):
    """A row that will be taken back by an Undo, and then come again, perhaps otherwise: `missing_inputs` were cut off, by
    the failure that `cause` names."""

    data: T
    key: Any
    event_time: datetime
    site: str
    ingest_ms: float
    emitted_ms: float
    missing_inputs: tuple[str, ...]
    cause: str | None


@dataclass(frozen=True, slots=True)
class Undo(Generic[T]):
    """All tentative rows so far are revoked: these, in their order."""

    revoked: tuple[Tentative[T], ...]
    cause: str | None


@dataclass(frozen=True, slots=True)
class Boundary:
    """No later row has an event time before `through`. Where it is tentative, an Undo may take that back."""

    through: datetime
    tentative: bool
    missing_inputs: tuple[str, ...]
    cause: str | None


@dataclass(frozen=True, slots=True)
class RecDone:
    """What the last Undo took back has all been corrected."""

    cause: str | None


@dataclass(frozen=True, slots=True)
class Missing:
    """The stable rows with these ids (last included) are at no site any more."""

    first_id: int
    last_id: int


Change = Stable[T] | Tentative[T] | Undo[T] | Boundary | RecDone | Missing


@dataclass
class MissingRows(BorealError):
    """Stable rows that the reader had not seen are kept no longer. Iterate again to go on after them."""

    first_id: int
    last_id: int

    def __str__(self) -> str:
        return f"the stable rows {self.first_id} to {self.last_id} are kept no longer; iterate again to go on after them"
