"""The items that SUnion passes to the operator host, in one ordered stream: steps, and orders between them.

Orders travel in band because each takes effect at one place: after the steps before it, and before the steps after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from boreal.model.frames import Ingest


@dataclass(frozen=True, slots=True)
class Step:
    """All rows of the buckets before `upto` that were in no earlier step of this branch."""

    batches: Mapping[str, pa.RecordBatch]
    """The rows of each input of the fragment's DAG, by the input's name, in (time, port, id) order."""
    upto: int
    """Event time in microseconds: the end (exclusive) of the last bucket in the step; INFINITY at the end of all inputs."""
    tentative: bool
    """Whether the input of the step may be incomplete. Its results can then be revoked."""
    muted: bool
    """Whether the step only rebuilds state. Its output is suppressed, because it has already been written."""
    ingest: Ingest
    """The ingest time from which the deadline of each bucket counts (R8), in runs of event time and clock values."""
    missing: tuple[str, ...] = ()
    """The names of the inputs that a tentative step lacks; () for a stable step."""
    cause: str = ""
    """The id of the failure that made the step tentative, or 'early' if no input has failed; '' for a stable step."""

    def without_rows(self) -> Step:
        """What is left when the host has taken the rows."""
        return Step({}, self.upto, self.tentative, self.muted, self.ingest, self.missing, self.cause)


@dataclass(frozen=True, slots=True)
class Mark:
    """MARK: a savepoint. The host remembers its state here, because tentative steps follow and ROLLBACK returns to it."""

    number: int
    """The number of the mark, counted from 1 in each incarnation."""
    time: int
    """Event time in microseconds. The state at the mark reflects exactly the rows before it."""
    is_early: bool = False
    """Whether no input has failed: an answer is due before its input is known to be complete."""


@dataclass(frozen=True, slots=True)
class Redone:
    """The correction that the last ROLLBACK began has caught up with the stable input."""

    number: int
    """The number of the mark to which that ROLLBACK returned."""


Item = Step | Mark | Redone
