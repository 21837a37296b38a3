"""What the sources of a live query have logged lately: the files of their logs, kept for a while after nobody needs them.

    recorded/LOG/00000000000000000042.log     a segment of a log that was trimmed, under the name that it had there

Of each log, the newest KEPT_BYTES stay, beside what is still in the log. A failure can be replayed as long as its rows are
among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from boreal.model.frames import Frame, LogId
from embedded.file_log import delete, directory_name, read_segment

KEPT_BYTES = 64 << 20
"""Of each log of a source, beside what its readers still need."""


class SourceArchive:
    """The archive of one query. `keep` is called by the writer of the logs, and so is `open`; what that returns is for any
    thread."""

    def __init__(self, directory: Path, logs: Path) -> None:
        """logs: the directory of the logs."""
        self._directory = directory
        self._logs = logs

    def keep(self, log: LogId, segment: Path) -> None:
        """Take a segment that is trimmed, and delete the oldest ones beyond KEPT_BYTES. Those of replicas are deleted."""
        if log.replica:
            return delete(log, segment)
        kept = self._directory / directory_name(log)
        kept.mkdir(parents=True, exist_ok=True)
        segment.rename(kept / segment.name)
        paths = sorted(kept.glob("*.log"))
        size = sum(path.stat().st_size for path in paths)
        for path in paths[:-1]:
            if size <= KEPT_BYTES:
                break
            size -= path.stat().st_size
            path.unlink()

    def open(self, logs: Iterable[LogId]) -> SourceFiles:
        """What there is of some logs now, whatever is trimmed from now on."""
        with ExitStack() as files:
            found: dict[LogId, list[BinaryIO]] = {}
            for log in logs:
                paths = [path for root in (self._directory, self._logs) for path in (root / directory_name(log)).glob("*.log")]
                ordered = sorted(paths, key=lambda path: path.name)
                found[log] = [files.enter_context(path.open("rb")) for path in ordered]
            return SourceFiles(found, files.pop_all())


class SourceFiles:
    """The open files of some logs. To be closed."""

    def __init__(self, files: Mapping[LogId, Sequence[BinaryIO]], opened: ExitStack) -> None:
        self._files = files
        self._opened = opened

    def newest_first(self, log: LogId) -> Iterator[list[Frame]]:
        """See `embedded.recording.NewestFirst`."""
        for file in reversed(self._files[log]):
            yield list(read_segment(file))

    def close(self) -> None:
        self._opened.close()
