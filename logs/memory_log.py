"""Logs in the memory of one process, for the simulator, the embedded driver and tests. Frames are kept as objects."""

from __future__ import annotations

from boreal.model.frames import Anchor, Data, Frame, LogId
from logs.index import Index
from logs.log import ControlFrame

_HEAD_BYTES = 256
_VALUE_BYTES = 8


class MemoryLog:
    """A `Log` of frame objects. Sizes are estimates (8 bytes per value), since an exact count costs more than an append."""

    def __init__(self, log: LogId) -> None:
        self.id = log
        self.nbytes = 0
        self._index = Index(log)
        self._frames: dict[int, Frame] = {}

    @property
    def start(self) -> int:
        return self._index.start

    @property
    def end(self) -> int:
        return self._index.end

    @property
    def next_stable_id(self) -> int:
        return self._index.next_stable_id

    @property
    def last_incarnation(self) -> int:
        return self._index.incarnation

    def append(self, frame: Frame) -> int:
        offset = self._index.add(frame)
        self._frames[offset] = frame
        self.nbytes += _size(frame)
        return offset

    def sync(self) -> None:
        """Nothing to do: memory does not survive the process."""

    def read(
        self, offset: int, max_frames: int, max_bytes: int | None = None, skip_revoked: bool = False
    ) -> list[tuple[int, Frame]]:
        found: list[tuple[int, Frame]] = []
        size = 0
        for place in self._index.offsets_from(offset, skip_revoked):
            if len(found) == max_frames:
                break
            frame = self._frames[place]
            if max_bytes is not None:
                size += _size(frame)
                if found and size > max_bytes:
                    break
            found.append((place, frame))
        return found

    def offset_after(self, stable_id: int) -> int:
        return self._index.offset_after(stable_id)

    def trim(self, stable_id: int) -> None:
        limit = self._index.trim_limit(stable_id)
        for offset in range(self._index.start, limit):
            self.nbytes -= _size(self._frames.pop(offset))
        self._index.forget(limit)

    def last_anchor(self) -> Anchor | None:
        return self._index.anchor

    def tail(self) -> ControlFrame | None:
        return self._index.tail


class MemoryLogStore:
    """A `LogStore` that keeps its logs after `close`: it stands for a broker."""

    def __init__(self) -> None:
        self._logs: dict[LogId, MemoryLog] = {}

    def open(self, log: LogId) -> MemoryLog:
        found = self._logs.get(log)
        if found is None:
            found = self._logs[log] = MemoryLog(log)
        return found

    def ids(self) -> list[LogId]:
        return sorted(self._logs)

    def close(self) -> None:
        """Nothing to close."""


def _size(frame: Frame) -> int:
    if not isinstance(frame, Data):
        return _HEAD_BYTES
    values: int = frame.batch.num_rows * frame.batch.num_columns
    return _HEAD_BYTES + values * _VALUE_BYTES
