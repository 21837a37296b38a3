"""A frame as a Kafka record: the value is the frame as boreal.model.codec writes it, headers repeat some of its fields as text.

    kind          data | boundary | undo | rec_done | start
    next_id       the log's next stable id after this record
    incarnation   the number of the log's last START, this record included
    epoch         the frame's
    first_id, rows, tentative (true | false), t_max    of DATA only

Readers trust the value, which has checksums of its own. Headers serve the search for a row (`next_id` never falls from
one record of a life to the next), and people who look at a topic.
"""

from __future__ import annotations

from collections.abc import Sequence

from boreal.model import codec
from boreal.model.errors import CorruptError
from boreal.model.frames import Boundary, Data, Frame, RecDone, Start, Undo

Headers = list[tuple[str, bytes]]

_KINDS = {Data: "data", Boundary: "boundary", Undo: "undo", RecDone: "rec_done", Start: "start"}


def encode_record(frame: Frame, next_id: int, incarnation: int) -> tuple[bytes, Headers]:
    """Value and headers. next_id, incarnation: what the log has come to with this frame. TypeError as `codec.encode`."""
    fields = {"kind": _KINDS[type(frame)], "next_id": next_id, "incarnation": incarnation, "epoch": frame.epoch}
    if isinstance(frame, Data):
        tentative = "true" if frame.tentative else "false"
        fields |= {"first_id": frame.first_id, "rows": frame.batch.num_rows, "tentative": tentative, "t_max": frame.t_max}
    return codec.encode(frame), [(name, str(value).encode("ascii")) for name, value in fields.items()]


def next_id_of(headers: Sequence[tuple[str, bytes]]) -> int:
    """The log's next stable id after the record. CorruptError where the headers do not say it."""
    return _number(headers, "next_id")


def incarnation_of(headers: Sequence[tuple[str, bytes]]) -> int:
    """The number of the last START up to the record, as its writer knew it; a frame of a lower one is fenced (R25)."""
    return _number(headers, "incarnation")


def is_control(headers: Sequence[tuple[str, bytes]]) -> bool:
    """Whether the record is anything but DATA."""
    return ("kind", b"data") not in headers


def _number(headers: Sequence[tuple[str, bytes]], name: str) -> int:
    for key, value in headers:
        if key == name:
            try:
                return int(value)
            except ValueError as error:
                raise CorruptError(f"the record's header {name} is no number: {value!r}") from error
    raise CorruptError(f"the record has no header {name}: no frame of a log")
