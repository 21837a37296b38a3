"""Where a live source reads its records: `PostedTopic`, a file of the records that clients have posted.

A topic has the role that a topic in Kafka has for a source of the services: the source remembers an offset in it, and after a
restart it reads the records from there again, the same ones. So a batch that a crash has left half logged can be completed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from boreal.model.frames import Data, LogId, Origin
from embedded.file_log import FileLog
from intake.user_records import PartitionRecords

SEGMENT_BYTES = 4 << 20
"""The size of a file. Read records are deleted by whole files."""
READ_FRAMES = 64
"""The largest number of calls of `post` whose records are read at a time."""

KEPT_RECORDS = 200_000

_ORIGIN = Origin("", 1)
_SCHEMA = pa.schema([pa.field("time", pa.int64(), nullable=False), pa.field("value", pa.string())])


class Topic(Protocol):
    """The records of one stream, with offsets from 0 on."""

    def end(self, now: int) -> int:
        """The offset of the first record that has not arrived at this clock value (microseconds)."""
        ...

    def read(self, offset: int, end: int) -> PartitionRecords:
        """Records from `offset` on and before `end`: at least one, unless there are none. Fewer than asked for may come."""
        ...

    def trim(self, offset: int) -> None:
        """The records before this offset are no longer needed."""
        ...

    def begin_at(self, since: int | None) -> int:
        """The offset of the first record that arrived at a clock value (microseconds) or later, of those that there are; of the
        first one if it is None."""
        ...


class SharedTopic:
    """A topic that the sources of several versions of a query read, each at its own offset: what one of them needs stays."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self._needed: dict[int, int] = {}

    def of(self, version: int) -> Topic:
        """The topic for the source of a version. It needs all records until it says otherwise."""
        self._needed[version] = 0
        return _OfVersion(self, version)

    def leave(self, version: int) -> None:
        """This version needs none any more."""
        self._needed.pop(version, None)

    def trim(self, version: int, offset: int) -> None:
        self._needed[version] = offset
        self.topic.trim(min(self._needed.values()))


class _OfVersion:
    def __init__(self, shared: SharedTopic, version: int) -> None:
        self._shared, self._version = shared, version
        self.end, self.read, self.begin_at = shared.topic.end, shared.topic.read, shared.topic.begin_at

    def trim(self, offset: int) -> None:
        self._shared.trim(self._version, offset)


class PostedTopic:
    """Posted records in files. `post` returns when they survive a crash of the machine. The last KEPT_RECORDS stay, for another
    version of the query."""

    def __init__(self, directory: Path) -> None:
        self._log = FileLog(LogId("posted", "", 0), directory, SEGMENT_BYTES)

    def post(self, records: Sequence[bytes], now: int) -> None:
        """Write records, which are UTF-8, durably, all or none. OSError if the disk does not take them."""
        first = self._log.next_stable_id
        texts = pa.array(records, pa.binary()).cast(pa.string())
        columns = [pa.array(np.arange(first, first + len(texts))), texts]
        batch = pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
        self._log.append(Data(_ORIGIN, 0, first, batch, False, ((first + len(records), now),), first + len(records)))
        self._log.sync()

    def end(self, now: int) -> int:
        return self._log.next_stable_id

    def read(self, offset: int, end: int) -> PartitionRecords:
        values: list[bytes | None] = []
        at = self._log.offset_after(offset - 1)
        # Frame by frame: one of them, the records of one call of `post`, may hold many more records than the caller takes.
        for place in range(at, min(at + READ_FRAMES, self._log.end)):
            first = offset + len(values)
            if first >= end:
                break
            [(_, frame)] = self._log.read(place, 1)
            assert isinstance(frame, Data), "this log holds posted records only"
            values += frame.batch.column(1)[first - frame.first_id : end - frame.first_id].cast(pa.binary()).to_pylist()
        return PartitionRecords(np.arange(offset, offset + len(values)), values)

    def trim(self, offset: int) -> None:
        self._log.trim(min(offset, self._log.next_stable_id - KEPT_RECORDS) - 1)

    def begin_at(self, since: int | None) -> int:
        for place in range(self._log.start, self._log.end):
            [(_, frame)] = self._log.read(place, 1)
            assert isinstance(frame, Data), "this log holds posted records only"
            if since is None or frame.ingest[-1][1] >= since:
                return frame.first_id
        return self._log.next_stable_id

    def close(self) -> None:
        self._log.close()
