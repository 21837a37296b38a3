"""What SUnion hands to the operator host, in one ordered stream: steps, and the orders that travel in band with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from boreal.model.frames import Ingest


@dataclass(frozen=True, slots=True)
class Step:
    """All rows of the buckets up to `upto` (exclusive) that no earlier step of this branch held.

    batches: per input of the fragment's DAG, rows in (time, port, id) order. tentative: computed from partial input.
    muted: the step only rebuilds state, and its output is thrown away. ingest: what each bucket counts from (R8).
    missing, cause: for a tentative step, the inputs that it lacks and the failure's id.
    """

    batches: Mapping[str, pa.RecordBatch]
    upto: int
    tentative: bool
    muted: bool
    ingest: Ingest
    missing: tuple[str, ...] = ()
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """MARK: remember the state here; tentative steps follow. `time`: all rows before it are in that state. is_early: no input
    has failed, but an answer is due before all that may still come for it."""

    number: int
    time: int
    is_early: bool = False


@dataclass(frozen=True, slots=True)
class Redone:
    """The correction that the last ROLLBACK began has caught up with the stable input."""

    number: int


Item = Step | Mark | Redone
