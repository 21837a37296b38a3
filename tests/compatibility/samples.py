"""One sample of everything that an installation keeps, or that processes of two versions send to each other, as bytes."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from boreal.model.codec import encode
from boreal.model.frames import INFINITY, Anchor, Boundary, Data, Frame, Origin, RecDone, Start, State, Undo
from boreal.model.schema import Schema
from boreal.query.spec import Mode
from formats.changelog import ChangelogPlace
from formats.client_headers import encode_anchor, encode_place
from formats.control_messages import acknowledge_item, message_item, trim_item
from formats.frame_records import encode_record
from logs.checkpoints import Checkpoint, encode_checkpoint
from operators.aggregate import AggregateOperator
from operators.deduplicate import DeduplicateOperator
from operators.distinct import DistinctOperator
from operators.join import JoinOperator
from operators.lookup import LookupOperator
from operators.operator import OperatorState
from operators.sessions import SessionOperator
from operators.top import TopOperator
from reconcile.events import Heartbeat, InstanceId, LeaseDenial, LeaseEnd, LeaseGrant, LeaseRequest, PathAfter
from reconcile.orders import Answer, Begin, Copy, DropLive, EndRedo, Order, RollBack, SetMark, encode_answer, encode_order
from reconcile.orders import Place as OrderPlace
from sunion.steps import Step

SCHEMA = Schema.of({"k": "string", "x": "int", "f": "bool", "t": "timestamp", "v": "double"})
ROWS = pa.RecordBatch.from_pylist(
    [
        {"time": 1, "k": "a", "x": None, "f": True, "t": 5, "v": None},
        {"time": 2, "k": None, "x": 7, "f": None, "t": None, "v": -0.0},
        {"time": 3, "k": "c", "x": 8, "f": False, "t": 6, "v": 1.5},
    ],
    schema=SCHEMA.arrow,
)
OPERATORS: dict[str, Any] = {
    "aggregate": AggregateOperator(
        "o", SCHEMA, 10, 10, ("k",), {"n": "count(*)", "d": "count(distinct v)", "a": "avg(v)", "s": "stddev(x)", "m": "max(k)"}
    ),
    "sessions": SessionOperator("o", SCHEMA, 3, 100, ("k",), {"n": "sum(x)", "d": "count(distinct v)"}),
    "sliding": AggregateOperator("o", SCHEMA, 10, 5, (), {"n": "sum(x)"}),
    "deduplicate": DeduplicateOperator("o", SCHEMA, ("k", "f"), 2),
    "distinct": DistinctOperator("o", SCHEMA, ("k", "f"), 10),
    "join": JoinOperator("o", (SCHEMA, SCHEMA), ("k",), 5, "left"),
    "lookup": LookupOperator("o", (SCHEMA, SCHEMA), ("k",), 5, "left"),
    "top": TopOperator("o", SCHEMA, 2, "x", 10, 10, ()),
}
"""Every operator with state."""

_ORIGIN = Origin("r1", 3)
_ANCHOR = Anchor(40, 20, (("q/0", 7), ("q/1", 9)), (("a/0", 12),))
_WHO = InstanceId("main", "r1", 2)

FRAMES: dict[str, Frame] = {
    "data": Data(_ORIGIN, 2, 5, ROWS, False, ((2, 100), (10, 130)), 10),
    "tentative data": Data(_ORIGIN, 2, 8, ROWS, True, ((10, 130),), 10, ("b", "c"), "b-1"),
    "boundary": Boundary(_ORIGIN, 2, 40, False, 130, 140, State.STABLE, _ANCHOR),
    "tentative boundary": Boundary(_ORIGIN, 2, INFINITY, True, 130, 140, State.UP_FAILURE),
    "undo": Undo(_ORIGIN, 3, 4, "b-1"),
    "rec_done": RecDone(_ORIGIN, 3, "b-1"),
    "start": Start(_ORIGIN, 4, 8),
}
ORDERS: dict[str, Order] = {
    "begin": Begin(3, Mode.OVERLAY_REDO, ("main.r0.2", 4), None),
    "step": Step({"o": ROWS}, 10, True, False, ()),
    "copy": Copy(5),
    "mark": SetMark(None, True),
    "roll_back": RollBack(True),
    "redone": EndRedo(),
    "drop_live": DropLive(),
}
ANSWERS = {
    "rows": Answer({"o": ROWS}),
    "copied": Answer(copied=1_000),
    "failed": Answer(failed="the operator raised"),
}
MESSAGES = (
    Heartbeat(_WHO, State.STABILIZATION),
    LeaseRequest(_WHO),
    LeaseGrant(_WHO),
    LeaseDenial(_WHO),
    LeaseEnd(_WHO),
    PathAfter(_WHO, "a/0", 95_000),
)
CHECKPOINT = Checkpoint("main.r1.2", 6, 40, 20, (("q/0", 7),), (("a/0", 12),), b"state")
PLACE = OrderPlace(3, 17)
CHANGELOG_PLACE = ChangelogPlace(seq=9, epoch=4, next_stable_id=4)


def state_of(name: str) -> OperatorState:
    """The state of an operator that has seen the rows."""
    operator = OPERATORS[name]
    state = operator.empty()
    batches = (ROWS, ROWS.slice(1)) if name in ("join", "lookup") else (ROWS,)
    operator.step(state, batches, 4)
    return state


def samples() -> dict[str, bytes]:
    """All of them by name."""
    found = {f"frame {name}": encode(frame) for name, frame in FRAMES.items()}
    for name, frame in FRAMES.items():
        value, headers = encode_record(frame, 8, 3)
        found[f"log record {name}"] = value + repr([(key, bytes(text)) for key, text in headers]).encode()
    found |= {f"state {name}": state_of(name).encode() for name in OPERATORS}
    found |= {f"order {name}": encode_order(PLACE, order) for name, order in ORDERS.items()}
    found |= {f"answer {name}": encode_answer(PLACE, answer) for name, answer in ANSWERS.items()}
    found["checkpoint"] = encode_checkpoint(CHECKPOINT)
    found["header anchor"] = encode_anchor(_ANCHOR)
    found["header place"] = encode_place(CHANGELOG_PLACE)
    items = [message_item(_WHO, message) for message in MESSAGES]
    items += [acknowledge_item(_WHO, (("a/0", 12),)), trim_item({"a/0": 11})]
    return found | {f"control item {number}": json.dumps(item).encode() for number, item in enumerate(items)}
