"""Messages between processes in a query's control topic, as JSON items (R24).

A record holds all items that one process sends at one moment:

    {"v": 1, "sender": "node.departures.r0", "items": [ITEM, ...]}
    {"to": "main.r1.0", "message": {"type": "Heartbeat", "sender": "main.r0.0", "state": "STABLE"}}
    {"acknowledge": {"reader": "main.r0.0", "positions": [["jfk/0", 1200], ...]}}
    {"wake": ["jfk", ...]}
    {"trim": [["jfk/0", 1100], ...]}
    {"trim": [["jfk/0", 0], ...], "hold": "late.1.1763996400000000"}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, assert_never

from boreal.model.errors import ProtocolError
from boreal.model.frames import State
from reconcile.events import (
    Heartbeat,
    InstanceId,
    LeaseDenial,
    LeaseEnd,
    LeaseGrant,
    LeaseRequest,
    Message,
    PathAfter,
)

ControlItem = dict[str, Any]

_PLAIN_MESSAGES = {kind.__name__: kind for kind in (LeaseRequest, LeaseGrant, LeaseDenial, LeaseEnd)}


def message_item(to: InstanceId, message: Message) -> ControlItem:
    """A message to one instance as an item."""
    fields: dict[str, Any] = {"type": type(message).__name__, "sender": str(message.sender)}
    match message:
        case Heartbeat(_, state):
            fields["state"] = state.value
        case PathAfter(_, key, micros):
            fields |= {"key": key, "micros": micros}
        case LeaseRequest() | LeaseGrant() | LeaseDenial() | LeaseEnd():
            pass
        case _:
            assert_never(message)
    return {"to": str(to), "message": fields}


def message_of(item: ControlItem) -> Message:
    """The message in an item made by `message_item`. ProtocolError for any other item."""
    try:
        fields = item["message"]
        sender = instance_of(fields["sender"])
        match fields["type"]:
            case "Heartbeat":
                return Heartbeat(sender, State(fields["state"]))
            case "PathAfter":
                return PathAfter(sender, fields["key"], int(fields["micros"]))
            case kind:
                return _PLAIN_MESSAGES[kind](sender)
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"not a control message: {item!r}") from error


def instance_of(text: str) -> InstanceId:
    """The instance named by 'FRAGMENT.REPLICA.SHARD'. ValueError for any other text."""
    fragment, replica, shard = text.rsplit(".", 2)
    return InstanceId(fragment, replica, int(shard))


def acknowledge_item(reader: InstanceId, positions: tuple[tuple[str, int], ...]) -> ControlItem:
    """An acknowledgement as an item. positions: ('stream/partition', first id that the reader still needs)."""
    return {"acknowledge": {"reader": str(reader), "positions": [list(position) for position in positions]}}


def wake_item(streams: Iterable[str]) -> ControlItem:
    """The request to the sources of these streams to write boundaries at the usual pace, as an item."""
    return {"wake": list(streams)}


def trim_item(positions: Mapping[str, int]) -> ControlItem:
    """A permission to trim as an item. positions: by 'stream/partition', the first id that must be kept."""
    return {"trim": [[key, needed] for key, needed in sorted(positions.items())]}


def hold_item(keys: Iterable[str], claim: str) -> ControlItem:
    """The withdrawal of all permissions to trim these 'stream/partition', as an item. Once their writer has taken it, it says
    so in its status, by the name of the claim."""
    return {**trim_item(dict.fromkeys(keys, 0)), "hold": claim}
