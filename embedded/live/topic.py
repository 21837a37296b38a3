"""Where a live source reads its records: `PostedTopic`, a file of the records that clients have posted.

A topic has the role that a topic in Kafka has for a source of the services: the source remembers an offset in it, and after a
restart it reads the records from there again, the same ones. So a batch that a crash has left half logged can be completed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from boreal.model.frames import Data, LogId, Origin
from embedded.file_log import FileLog

SEGMENT_BYTES = 4 << 20
"""The size of a file. Read records are deleted by whole files."""
READ_FRAMES = 64

_ORIGIN = Origin("", 1)
_SCHEMA = pa.schema([pa.field("time", pa.int64(), nullable=False), pa.field("value", pa.string())])


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A record, in the shape that `intake.Intake` takes."""

    offset: int
    """Its place in the topic, from 0, without gaps."""
    value: bytes | None
    """A JSON object; None in a heartbeat."""
    headers: Sequence[tuple[str, bytes | None]] = ()
    """(name, value), as `intake.intake` reads them."""


class Topic(Protocol):
    """The records of one stream, with offsets from 0 on."""

    def end(self, now: int) -> int:
        """The offset of the first record that has not arrived at this clock value (microseconds)."""
        ...

    def read(self, offset: int, end: int) -> list[TopicRecord]:
        """Records from `offset` on and before `end`: at least one, unless there are none. Fewer than asked for may come."""
        ...

    def trim(self, offset: int) -> None:
        """The records before this offset are no longer needed."""
        ...


class PostedTopic:
    """Posted records in files. `post` returns when they survive a crash of the machine."""

    def __init__(self, directory: Path) -> None:
        self._log = FileLog(LogId("posted", "", 0), directory, SEGMENT_BYTES)

    def post(self, records: Sequence[bytes], now: int) -> None:
        """Write records durably, all or none. OSError if the disk does not take them."""
        first = self._log.next_stable_id
        texts = [record.decode("utf-8", "backslashreplace") for record in records]
        columns = [pa.array(range(first, first + len(texts)), pa.int64()), pa.array(texts, pa.string())]
        batch = pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
        self._log.append(Data(_ORIGIN, 0, first, batch, False, ((first + len(records), now),), first + len(records)))
        self._log.sync()

    def end(self, now: int) -> int:
        return self._log.next_stable_id

    def read(self, offset: int, end: int) -> list[TopicRecord]:
        if offset >= self._log.next_stable_id:
            return []
        found: list[TopicRecord] = []
        for _, frame in self._log.read(self._log.offset_after(offset - 1), READ_FRAMES):
            if isinstance(frame, Data):
                values: list[bytes] = frame.batch.column(1).cast(pa.binary()).to_pylist()
                numbered = enumerate(values, start=frame.first_id)
                found += [TopicRecord(number, value) for number, value in numbered if offset <= number < end]
        return found

    def trim(self, offset: int) -> None:
        self._log.trim(offset - 1)

    def close(self) -> None:
        self._log.close()
