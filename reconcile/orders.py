"""Orders from an instance to its operator host: one numbered sequence, each order answered once, in order (R31).

Steps, MARK and ROLLBACK travel in band in this sequence, so each order finds the state that all earlier orders have left. The
host may be in the same process (engine: native), or in another process, which reads the orders from a log and writes its
answers to another log. In the second case orders and answers are encoded as bytes:

    magic, version, checksum     as for any encoded state (operators.encoding)
    facts                        life (the incarnation), place (the number of the order in it), the kind and its arguments
    parts                        one Arrow IPC stream for each batch; no bytes for an empty batch

The same sequence of orders gives the same answers, byte for byte, in every process that executes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

import pyarrow as pa

from boreal.model.errors import CorruptError
from boreal.model.frames import Ingest
from boreal.model.schema import Schema
from boreal.query.spec import Mode
from operators.encoding import pack, unpack
from sunion.steps import Step

_KIND = "order"
_ANSWER = "answer"
_NO_INGEST: Ingest = ()


@dataclass(frozen=True, slots=True)
class Begin:
    """An incarnation begins: discard all state, and start from a checkpoint, or from the empty state."""

    incarnation: int
    """The number of the incarnation."""
    mode: Mode
    """The strategy of this incarnation."""
    checkpoint: tuple[str, int] | None
    """The owner and the number of the checkpoint in the store; None for the empty state."""
    state: bytes | None
    """The state of that checkpoint, for a host in this process; None otherwise."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the state. In the mode checkpoint_redo a rollback returns to the last copy."""

    number: int | None
    """The number of the copy in the store; None if it stays in memory only."""


@dataclass(frozen=True, slots=True)
class SetMark:
    """MARK: tentative steps follow."""

    number: int | None
    """The number in the store of the copy that is made now; None if no copy is made."""
    overlaid: bool = False
    """Whether tentative steps write to an overlay in every mode, which ROLLBACK drops. It is used for early answers: they are
    corrected often, so a copy or a rebuild each time would cost too much."""


@dataclass(frozen=True, slots=True)
class RollBack:
    """ROLLBACK to the mark: stable steps follow."""

    keep_live: bool
    """Whether tentative steps continue beside the stable ones (R21)."""


@dataclass(frozen=True, slots=True)
class EndRedo:
    """The correction is complete."""


@dataclass(frozen=True, slots=True)
class DropLive:
    """Drop the live branch that runs beside a correction."""


Order = Begin | Step | Copy | SetMark | RollBack | EndRedo | DropLive


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of an order."""

    outputs: Mapping[str, pa.RecordBatch] = field(default_factory=dict)
    """The output rows of a step, by the name of the operator that made them."""
    copied: int | None = None
    """The size of a copy of the state in bytes; None if none was made."""
    state: bytes | None = None
    """The copy, from a host in this process; None otherwise."""
    failed: str | None = None
    """Why a host in another process could not execute the order, which ends this incarnation; None if it did."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """The place of an order. Places rise, first by incarnation and then by number."""

    incarnation: int
    """The number of the incarnation."""
    number: int
    """The number of the order in it, counted from 1. (0, 0) is before all orders."""


_PLAIN = {"copy": Copy, "mark": SetMark, "roll_back": RollBack, "redone": EndRedo, "drop_live": DropLive}
_NAMES = {kind: name for name, kind in _PLAIN.items()}


def encode_order(place: Place, order: Order) -> bytes:
    """The bytes of an order, as it is logged for a host in another process."""
    facts: dict[str, object] = {"life": place.incarnation, "place": place.number}
    match order:
        case Step(batches, upto, tentative):
            facts |= {"order": "step", "upto": upto, "tentative": tentative, "inputs": list(batches)}
            return pack(_KIND, facts, [_batch_bytes(batch) for batch in batches.values()])
        case Begin(_, mode, checkpoint):
            facts |= {"order": "begin", "mode": mode.value, "checkpoint": list(checkpoint) if checkpoint else None}
        case Copy() | SetMark() | RollBack() | EndRedo() | DropLive():
            facts |= {"order": _NAMES[type(order)], **{name: getattr(order, name) for name in order.__slots__}}
        case _:
            assert_never(order)
    return pack(_KIND, facts, [])


def decode_order(data: bytes, inputs: Mapping[str, Schema]) -> tuple[Place, Order]:
    """The order that `encode_order` wrote, for a fragment with these inputs. CorruptError for any other bytes.

    The bytes of a step hold only what its host needs. So `ingest`, `missing`, `cause` and `muted` have their empty values.
    """
    facts, parts = unpack(data, _KIND)
    try:
        place, order = _place(facts), facts.pop("order")
        if order == "step":
            named = zip(facts.pop("inputs"), parts, strict=True)  # type: ignore[call-overload]
            batches = {name: _batch(part, inputs[name]) for name, part in named}
            return place, Step(batches, muted=False, ingest=_NO_INGEST, **facts)  # type: ignore[arg-type]
        if order == "begin":
            checkpoint: Any = facts["checkpoint"]
            return place, Begin(place.incarnation, Mode(str(facts["mode"])), tuple(checkpoint) if checkpoint else None, None)
        return place, _PLAIN[order](**facts)  # type: ignore[index]
    except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise CorruptError(f"not an order of this fragment: {error!r}") from None


def encode_answer(place: Place, answer: Answer) -> bytes:
    """The bytes of an answer, as its host logs it. The copy of a state is left out, because the host uploads it to the
    store."""
    facts: dict[str, object] = {
        "life": place.incarnation,
        "place": place.number,
        "outputs": list(answer.outputs),
        "copied": answer.copied,
        "failed": answer.failed,
    }
    return pack(_ANSWER, facts, [_batch_bytes(batch) for batch in answer.outputs.values()])


def decode_answer(data: bytes, outputs: Mapping[str, Schema]) -> tuple[Place, Answer]:
    """The answer that `encode_answer` wrote, for a fragment with these outputs. CorruptError for any other bytes."""
    facts, parts = unpack(data, _ANSWER)
    try:
        names: Any = facts["outputs"]
        made = {name: _batch(part, outputs[name]) for name, part in zip(names, parts, strict=True)}
        return _place(facts), Answer(made, facts["copied"], failed=facts["failed"])  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise CorruptError(f"not an answer of this fragment: {error!r}") from None


def _place(facts: dict[str, Any]) -> Place:
    return Place(int(facts.pop("life")), int(facts.pop("place")))


def _batch_bytes(batch: pa.RecordBatch) -> bytes:
    if not batch.num_rows:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _batch(data: bytes, schema: Schema) -> pa.RecordBatch:
    if not data:
        return schema.empty()
    batch = pa.ipc.open_stream(data).read_next_batch()
    if batch.schema != schema.arrow:
        raise ValueError(f"columns {batch.schema.names} instead of {schema.arrow.names}")
    return batch
