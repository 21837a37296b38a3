"""What an instance has the host of its operators do: orders in one numbered sequence, each answered once, in order (R31).

Steps, MARK and ROLLBACK travel in it in band, so an order finds the state that all before it have left. The host may be
beside the instance (engine: native), or in another process, which reads the orders from a log and writes its answers to
another; then both are bytes:

    magic, version, checksum     as any state's (operators.encoding)
    facts                        life (incarnation), place (the order's number in it), kind, and what the kind needs
    parts                        one Arrow IPC stream for each batch; none at all for an empty one

The same order gives the same answer, byte for byte, in every process that obeys it.
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
    """A life begins: forget all, and start from a checkpoint, or empty. mode: how this life reconciles. checkpoint: the owner
    and the number under which the store has it; state: the same as bytes, for a host that is beside us."""

    incarnation: int
    mode: Mode
    checkpoint: tuple[str, int] | None
    state: bytes | None


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the state as what a rollback returns to. number: what the store is to call it; None keeps it in memory alone."""

    number: int | None


@dataclass(frozen=True, slots=True)
class Mark:
    """MARK: tentative steps follow. number: what the store is to call the copy that is made now; None where the strategy makes
    none. overlaid: tentative steps write to an overlay, whatever the mode, which ROLLBACK drops: for early answers, which are
    corrected again and again."""

    number: int | None
    overlaid: bool = False


@dataclass(frozen=True, slots=True)
class RollBack:
    """ROLLBACK to the mark: stable steps follow; with keep_live tentative ones go on beside them."""

    keep_live: bool


@dataclass(frozen=True, slots=True)
class Redone:
    """The correction is complete."""


@dataclass(frozen=True, slots=True)
class DropLive:
    """The live branch beside a correction is given up."""


Order = Begin | Step | Copy | Mark | RollBack | Redone | DropLive


@dataclass(frozen=True, slots=True)
class Answer:
    """What an order has made: a step's output rows, by the name of what made them; the size of a copy of the state, and the
    copy itself where its host is beside us; failed: why a host in another process cannot obey, which ends this life."""

    outputs: Mapping[str, pa.RecordBatch] = field(default_factory=dict)
    copied: int | None = None
    state: bytes | None = None
    failed: str | None = None


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Which order of which life; they rise."""

    incarnation: int
    number: int


_PLAIN = {"copy": Copy, "mark": Mark, "roll_back": RollBack, "redone": Redone, "drop_live": DropLive}
_NAMES = {kind: name for name, kind in _PLAIN.items()}


def encode_order(place: Place, order: Order) -> bytes:
    """The order as it is logged for a host in another process."""
    facts: dict[str, object] = {"life": place.incarnation, "place": place.number}
    match order:
        case Step(batches, upto, tentative):
            facts |= {"order": "step", "upto": upto, "tentative": tentative, "inputs": list(batches)}
            return pack(_KIND, facts, [_batch_bytes(batch) for batch in batches.values()])
        case Begin(_, mode, checkpoint):
            facts |= {"order": "begin", "mode": mode.value, "checkpoint": list(checkpoint) if checkpoint else None}
        case Copy() | Mark() | RollBack() | Redone() | DropLive():
            facts |= {"order": _NAMES[type(order)], **{name: getattr(order, name) for name in order.__slots__}}
        case _:
            assert_never(order)
    return pack(_KIND, facts, [])


def decode_order(data: bytes, inputs: Mapping[str, Schema]) -> tuple[Place, Order]:
    """What `encode_order` wrote, for a fragment with these inputs; CorruptError for anything else. A step's order holds no
    more than its host needs: not what it counts from, or lacks."""
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
    """The answer as its host logs it, without the copy of a state, which goes to the store."""
    facts: dict[str, object] = {
        "life": place.incarnation,
        "place": place.number,
        "outputs": list(answer.outputs),
        "copied": answer.copied,
        "failed": answer.failed,
    }
    return pack(_ANSWER, facts, [_batch_bytes(batch) for batch in answer.outputs.values()])


def decode_answer(data: bytes, outputs: Mapping[str, Schema]) -> tuple[Place, Answer]:
    """What `encode_answer` wrote, for a fragment with these outputs; CorruptError for anything else."""
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
