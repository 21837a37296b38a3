"""What every operator is: a deterministic function of (state, step), vectorised over Arrow (design: Operators).

One step hands an operator, for each of its inputs, all rows with previous upto <= time < upto, in the order (time,
port, id). What comes out over a run (rows, their order) must not depend on where the stream is cut into steps (R5).
Output rows of a step have previous upto <= time < upto, in the canonical order (time, key encoding, ordinal).
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from boreal.model.schema import Schema


class OperatorState(Protocol):
    """What an operator remembers between steps. Only its own operator looks inside."""

    def overlay(self) -> OperatorState:
        """A child that reads through to this state and writes only to itself, made in time that does not grow with the
        state. While a child lives, this state is not stepped."""
        ...

    def absorb(self, child: OperatorState) -> None:
        """Take over a child's writes: afterwards this state equals what the child was. Costs what the child changed."""
        ...

    def encode(self) -> bytes:
        """The whole state as bytes (Arrow IPC for columns; never pickle); equal states encode to equal bytes."""
        ...

    def nbytes(self) -> int:
        """About how much memory this layer takes, in bytes, cheaply. What it shares with its parent is the parent's."""
        ...


class Operator(Protocol):
    """An operator of a fragment's DAG; immutable, so one object serves any number of instances."""

    name: str
    schema: Schema

    def empty(self) -> OperatorState:
        """The state before the first step."""
        ...

    def decode(self, blob: bytes) -> OperatorState:
        """The state that `encode` wrote; CorruptError if the bytes are not such a state."""
        ...

    def step(self, state: OperatorState, batches: tuple[pa.RecordBatch, ...], upto: int) -> pa.RecordBatch:
        """Take the rows of one step, a batch an input; write to `state`; return the output rows."""
        ...

    def needs(self, time: int) -> int:
        """The oldest input time on which state at `time`, and outputs at or after it, depend (DPC's stream markers,
        section 'Undo/redo'); -INFINITY where the state never lets go."""
        ...
