"""A frame as a Kafka record. The value is the frame, encoded by boreal.model.codec. Headers repeat some fields as text.

    kind          data | boundary | undo | rec_done | start
    next_id       the log's next stable id after this record
    incarnation   the number of the log's last START, including this record
    epoch         of the frame
    first_id, rows, tentative (true | false), t_max    of DATA only

Readers trust the value, which contains checksums. Headers are for the search for a row (within an incarnation `next_id`
never falls) and for people who look at a topic.
"""

from __future__ import annotations

from collections.abc import Sequence

from boreal.model import codec
from boreal.model.errors import CorruptError
from boreal.model.frames import Boundary, Data, Frame, RecDone, Start, Undo

Headers = list[tuple[str, bytes]]

_KINDS = {Data: "data", Boundary: "boundary", Undo: "undo", RecDone: "rec_done", Start: "start"}


def encode_record(frame: Frame, next_id: int, incarnation: int) -> tuple[bytes, Headers]:
    """Value and headers of the record. next_id, incarnation: of the log after this frame. TypeError as `codec.encode`."""
    fields = {"kind": _KINDS[type(frame)], "next_id": next_id, "incarnation": incarnation, "epoch": frame.epoch}
    if isinstance(frame, Data):
        tentative = "true" if frame.tentative else "false"
        fields |= {"first_id": frame.first_id, "rows": frame.batch.num_rows, "tentative": tentative, "t_max": frame.t_max}
    return codec.encode(frame), [(name, str(value).encode("ascii")) for name, value in fields.items()]


def next_id_of(headers: Sequence[tuple[str, bytes]]) -> int:
    """The log's next stable id after the record. CorruptError if the header is absent or not a number."""
    return _number(headers, "next_id")


def incarnation_of(headers: Sequence[tuple[str, bytes]]) -> int:
    """The number of the last START up to the record, as its writer knew it. A frame with a lower one is fenced (R25).
    CorruptError as `next_id_of`."""
    return _number(headers, "incarnation")


def is_control(headers: Sequence[tuple[str, bytes]]) -> bool:
    """Whether the record is not DATA."""
    return ("kind", b"data") not in headers


def _number(headers: Sequence[tuple[str, bytes]], name: str) -> int:
    for key, value in headers:
        if key == name:
            try:
                return int(value)
            except ValueError as error:
                raise CorruptError(f"the record's header {name} is not a number: {value!r}") from error
    raise CorruptError(f"the record has no header {name}, so it is not a frame of a log")
