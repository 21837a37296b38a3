"""The interface of operators: deterministic functions of (state, step), vectorised over Arrow (design: Operators).

In one step an operator gets, for each input, all rows with previous upto <= time < upto, in the order (time, port, id). The
output of a run (rows and their order) must not depend on where the stream is divided into steps (R5). Output rows of a step
have previous upto <= time < upto, in the canonical order (time, key encoding, ordinal).
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from boreal.model.schema import Schema


class OperatorState(Protocol):
    """The state of an operator between steps. Only its operator knows the contents."""

    def overlay(self) -> OperatorState:
        """A child that reads through to this state, and writes only to itself; created in constant time. While a child exists,
        this state must not be stepped."""
        ...

    def absorb(self, child: OperatorState) -> None:
        """Take over a child's writes: afterwards this state equals the child. The cost is proportional to the changes."""
        ...

    def encode(self) -> bytes:
        """The whole state as bytes (Arrow IPC for columns; never pickle); equal states encode to equal bytes."""
        ...

    def nbytes(self) -> int:
        """Approximate memory of this layer in bytes, without what it shares with its parent. Cheap."""
        ...


class Operator(Protocol):
    """An operator of a fragment's DAG; immutable, so one object serves any number of instances."""

    name: str
    """Name of the operator in the query."""
    schema: Schema
    """Schema of the output."""

    def empty(self) -> OperatorState:
        """The state before the first step."""
        ...

    def decode(self, blob: bytes) -> OperatorState:
        """The state that `encode` encoded. CorruptError if the bytes are not such a state."""
        ...

    def step(self, state: OperatorState, batches: tuple[pa.RecordBatch, ...], upto: int) -> pa.RecordBatch:
        """Process the rows of one step; modifies `state`; returns the output rows. batches: one per input. upto: end of the
        step as event time (us)."""
        ...

    def needs(self, time: int) -> int:
        """The oldest input time on which state at `time`, and outputs at or after it, depend (DPC's stream markers,
        section 'Undo/redo'), in us; -INFINITY if the state depends on all earlier input."""
        ...
