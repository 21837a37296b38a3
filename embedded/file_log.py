"""Logs in files: a directory a log, a file a segment; survives the process, and with `sync` the machine.

    LOG/00000000000000000042.log     named by the offset of its first frame
        header    magic 'bLog', version u8, that offset i64, next stable id i64, incarnation i64, CRC32 u32
        records   size u32, CRC32 of the size u32, the frame as boreal.model.codec writes it

The header says what the segments before it, perhaps trimmed, have come to. The size has a checksum of its own, so that
a damaged one is never taken for a last record that was cut short, which would throw away all that follows it.

Damage: a crash in mid-append leaves a last record that is cut short (or, if the machine lost power, not all written):
opening cuts it off, and says so in `repaired`. Anything else is a CorruptError that names the file and the byte.
Opening checks all of the last segment, and the heads alone of the others, which were synced before the last was begun;
their rows are checked as they are read.
"""

from __future__ import annotations

import os
import struct
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, unquote

from boreal.model import codec
from boreal.model.errors import CorruptError
from boreal.model.frames import Anchor, Frame, LogId
from logs.index import Index
from logs.log import ControlFrame

SEGMENT_BYTES = 64 << 20
_VERSION = 1
_MAGIC = b"bLog"
_HEADER = struct.Struct("<4sBqqq")
_CHECKSUM = struct.Struct("<I")
_HEADER_SIZE = _HEADER.size + _CHECKSUM.size
_RECORD = struct.Struct("<II")

Discard = Callable[[LogId, Path], None]
"""Called with the log and each of its segments that is trimmed, which must be gone from its place afterwards."""


def delete(log: LogId, segment: Path) -> None:
    """What becomes of a trimmed segment unless somebody wants it."""
    segment.unlink()


@dataclass
class _Segment:
    """A file of a log. positions: of its records, in order; the record of offset base + i begins at positions[i]."""

    path: Path
    base: int
    size: int
    positions: array[int] = field(default_factory=lambda: array("Q"))

    def span(self, offset: int) -> tuple[int, int]:
        """Where the record of this offset begins and ends."""
        record = offset - self.base
        last = record + 1 == len(self.positions)
        return self.positions[record], self.size if last else self.positions[record + 1]


class FileLog:
    """A `Log` in a directory. Trimming discards whole segments, never the one that is being written.

    repaired: what opening the log had to cut off, '' if nothing.
    """

    def __init__(
        self, log: LogId, directory: Path, segment_bytes: int = SEGMENT_BYTES, discard: Discard = delete
    ) -> None:
        self.id = log
        self.repaired = ""
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._discard = discard
        self._index = Index(log)
        self._segments: list[_Segment] = []
        self._reader: tuple[Path, BinaryIO] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        sync_directory(directory.parent)
        self._load()
        if not self._segments:
            self._begin_segment()
        self._writer = self._segments[-1].path.open("ab", buffering=0)

    @property
    def start(self) -> int:
        return self._index.start

    @property
    def end(self) -> int:
        return self._index.end

    @property
    def nbytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def next_stable_id(self) -> int:
        return self._index.next_stable_id

    @property
    def last_incarnation(self) -> int:
        return self._index.incarnation

    def append(self, frame: Frame) -> int:
        data = codec.encode(frame)
        size = _CHECKSUM.pack(len(data))
        record = b"".join((size, _CHECKSUM.pack(zlib.crc32(size)), data))
        segment = self._segments[-1]
        if segment.positions and segment.size + len(record) > self._segment_bytes:
            segment = self._roll()
        self._write(segment, record)
        segment.positions.append(segment.size)
        segment.size += len(record)
        return self._index.add(frame)

    def _write(self, segment: _Segment, record: bytes) -> None:
        left = memoryview(record)
        try:
            while left:
                left = left[self._writer.write(left) :]
        except OSError:
            self._writer.truncate(segment.size)
            raise

    def sync(self) -> None:
        os.fsync(self._writer.fileno())

    def read(
        self, offset: int, max_frames: int, max_bytes: int | None = None, skip_revoked: bool = False
    ) -> list[tuple[int, Frame]]:
        found: list[tuple[int, Frame]] = []
        size = 0
        for place in self._index.offsets_from(offset, skip_revoked):
            if len(found) == max_frames:
                break
            segment = self._segment_of(place)
            begin, end = segment.span(place)
            size += end - begin
            if found and max_bytes is not None and size > max_bytes:
                break
            found.append((place, self._frame(segment, begin, end)))
        return found

    def _segment_of(self, offset: int) -> _Segment:
        return self._segments[bisect_right(self._segments, offset, key=lambda segment: segment.base) - 1]

    def _frame(self, segment: _Segment, begin: int, end: int) -> Frame:
        file = self._open(segment.path)
        file.seek(begin + _RECORD.size)
        try:
            return codec.decode(file.read(end - begin - _RECORD.size))
        except CorruptError as error:
            raise _damage(segment.path, begin, error) from error

    def _open(self, path: Path) -> BinaryIO:
        """The segment's file for reading; the one read last stays open."""
        if self._reader is None or self._reader[0] != path:
            self._close_reader()
            self._reader = (path, path.open("rb", buffering=0))
        return self._reader[1]

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader[1].close()
            self._reader = None

    def offset_after(self, stable_id: int) -> int:
        return self._index.offset_after(stable_id)

    def trim(self, stable_id: int) -> None:
        limit = self._index.trim_limit(stable_id)
        # Oldest first: a crash in between leaves a log without a hole.
        while len(self._segments) > 1 and self._segments[1].base <= limit:
            self._discard(self.id, self._segments.pop(0).path)
        self._index.forget(self._segments[0].base)

    def last_anchor(self) -> Anchor | None:
        return self._index.anchor

    def tail(self) -> ControlFrame | None:
        return self._index.tail

    def close(self) -> None:
        """Close the files."""
        self._close_reader()
        self._writer.close()

    def _roll(self) -> _Segment:
        """Begin the next segment once this one is safe: only the last may have a damaged end."""
        self.sync()
        segment = self._begin_segment()
        self._writer.close()
        self._writer = segment.path.open("ab", buffering=0)
        return segment

    def _begin_segment(self) -> _Segment:
        index = self._index
        header = _HEADER.pack(_MAGIC, _VERSION, index.end, index.next_stable_id, index.incarnation)
        path = self._directory / f"{index.end:020d}.log"
        try:
            with path.open("wb") as file:
                file.write(header + _CHECKSUM.pack(zlib.crc32(header)))
                file.flush()
                os.fsync(file.fileno())
            sync_directory(self._directory)
        except OSError:
            # The log goes on without it, and would be found damaged with it.
            path.unlink(missing_ok=True)
            raise
        self._segments.append(_Segment(path, index.end, _HEADER_SIZE))
        return self._segments[-1]

    # Opening

    def _load(self) -> None:
        paths = sorted(self._directory.glob("*.log"))
        for path in paths:
            last = path == paths[-1]
            with path.open("rb") as file:
                if self._load_header(path, file, last):
                    self._load_records(self._segments[-1], file, last)

    def _load_header(self, path: Path, file: BinaryIO, last: bool) -> bool:
        """Enter the segment; False if it was cut off: a crash while it was being made, before its first frame."""
        size = os.fstat(file.fileno()).st_size
        header = file.read(_HEADER_SIZE)
        if len(header) < _HEADER_SIZE or _CHECKSUM.pack(zlib.crc32(header[: _HEADER.size])) != header[_HEADER.size :]:
            if last and size <= _HEADER_SIZE and int(path.stem) == self._index.end:
                self._repair(path, 0)
                path.unlink()
                return False
            raise _damage(path, 0, "the segment's header is cut short, or its checksum is wrong")
        magic, version, base, next_stable_id, incarnation = _HEADER.unpack_from(header)
        if magic != _MAGIC or version != _VERSION:
            raise _damage(path, 0, f"{magic!r} version {version} is no segment that this program reads")
        if self._segments and base != self._index.end:
            raise _damage(path, 0, f"it begins at offset {base}, and the segment before it ends at {self._index.end}")
        if not self._segments:
            self._index = Index(self.id, base, next_stable_id, incarnation)
        self._segments.append(_Segment(path, base, size))
        return True

    def _load_records(self, segment: _Segment, file: BinaryIO, last: bool) -> None:
        position = _HEADER_SIZE
        while position < segment.size:
            try:
                size, head = _load_record(file, position, segment.size, whole=last)
            except CorruptError as error:
                if not last or not _is_tail(file, position, segment.size):
                    raise _damage(segment.path, position, error) from error
                self._repair(segment.path, position)
                segment.size = position
                return
            segment.positions.append(position)
            self._index.add(head)
            position += size

    def _repair(self, path: Path, position: int) -> None:
        self.repaired = f"{path}: cut off {path.stat().st_size - position} bytes at byte {position}, not all written"
        os.truncate(path, position)


def _load_record(file: BinaryIO, position: int, file_size: int, whole: bool) -> tuple[int, codec.Head]:
    """The size of the record at `position` and the head of its frame; `whole` checks its rows too."""
    size = _record_size(file, position)
    if position + size > file_size:
        raise CorruptError(f"the record is cut short: {file_size - position} of {size} bytes")
    if whole:
        data = file.read(size - _RECORD.size)
        codec.verify(data)
    else:
        data = file.read(codec.PRELUDE_SIZE)
        data += file.read(min(codec.head_size(data), size - _RECORD.size) - len(data))
    return size, codec.peek(data)


def _record_size(file: BinaryIO, position: int) -> int:
    """The size of the record at `position`, its own prefix included. The file is then at the end of that prefix."""
    file.seek(position)
    prefix = file.read(_RECORD.size)
    if len(prefix) < _RECORD.size:
        raise CorruptError(f"the record is cut short: {len(prefix)} bytes")
    size, checksum = _RECORD.unpack(prefix)
    if zlib.crc32(prefix[: _CHECKSUM.size]) != checksum:
        raise CorruptError("the checksum of the record's size is wrong: its bytes were damaged")
    return _RECORD.size + int(size)


def _is_tail(file: BinaryIO, position: int, file_size: int) -> bool:
    """Whether the bad record at `position` is the last thing in the file, and so one that was not all written."""
    try:
        return position + _record_size(file, position) >= file_size
    except CorruptError:
        return not file.read().strip(b"\0")


def _damage(path: Path, position: int, problem: object) -> CorruptError:
    return CorruptError(f"{path}, byte {position}: {problem}")


def sync_directory(directory: Path) -> None:
    """Make the names of new files outlast a crash of the machine."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_segment(file: BinaryIO) -> Iterator[Frame]:
    """The frames of a segment, from its beginning; of one that is being written, those that are whole. CorruptError."""
    size = os.fstat(file.fileno()).st_size
    position = _HEADER_SIZE
    while position < size:
        try:
            record = _record_size(file, position)
        except CorruptError:
            if _is_tail(file, position, size):
                return
            raise
        data = file.read(record - _RECORD.size)
        if len(data) < record - _RECORD.size:
            return
        yield codec.decode(data)
        position += record


class FileLogStore:
    """A `LogStore` in a directory, for one process at a time."""

    def __init__(self, root: Path, segment_bytes: int = SEGMENT_BYTES, discard: Discard = delete) -> None:
        self._root = root
        self._segment_bytes = segment_bytes
        self._discard = discard
        self._logs: dict[LogId, FileLog] = {}
        root.mkdir(parents=True, exist_ok=True)

    def open(self, log: LogId) -> FileLog:
        if log not in self._logs:
            self._logs[log] = FileLog(log, self._root / directory_name(log), self._segment_bytes, self._discard)
        return self._logs[log]

    def ids(self) -> list[LogId]:
        return sorted(_named(path.name) for path in self._root.glob("*@*@*"))

    def close(self) -> None:
        for log in self._logs.values():
            log.close()
        self._logs.clear()


def directory_name(log: LogId) -> str:
    """The name of a log's directory."""
    return f"{quote(log.stream, safe='')}@{quote(log.replica, safe='')}@{log.partition}"


def _named(directory: str) -> LogId:
    stream, replica, partition = directory.split("@")
    return LogId(unquote(stream), unquote(replica), int(partition))
