"""The folders of a run: their files, and how to remove those of an older run without touching other files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TextIO

from boreal.model.errors import UserError
from embedded.file_checkpoints import FileCheckpointStore
from embedded.file_log import FileLogStore
from logs.checkpoints import CheckpointStore
from logs.log import LogStore
from logs.memory_checkpoints import MemoryCheckpointStore
from logs.memory_log import MemoryLogStore

STREAM_FILES = ("stable.jsonl", "changes.jsonl", "dlq.jsonl")
REPORT = "report.json"
RUN_FILES = (*STREAM_FILES, REPORT)
LOGS, CHECKPOINTS = "logs", "checkpoints"


def check(out: Path, force: bool, field: str = "--out") -> None:
    """UserError if `out` exists and `force` is not set, or if it is not a directory."""
    if not os.path.lexists(out):
        return
    if not out.is_dir():
        raise UserError(field, str(out), "is not a directory", "use the name of a directory")
    if not force:
        raise UserError(
            field, str(out), "already exists", "add --force to replace the files of an earlier run, or use another name"
        )


def prepare(out: Path, files: Iterable[str] = RUN_FILES, parts: Iterable[str] = (), field: str = "--out") -> None:
    """Create `out`, or remove `files` from it and the files of runs from its folders `parts`. Other files stay."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        _remove(out, files)
        for part in (out / name for name in parts):
            if part.is_dir() and not part.is_symlink():
                _remove(part, RUN_FILES)
                if not any(part.iterdir()):
                    part.rmdir()
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
        raise UserError(field, str(error.filename or out), problem, "use a directory that you can write to") from None


def check_data(data: Path, field: str = "--data") -> None:
    """UserError if `data` holds the logs or checkpoints of another run, or is not a directory."""
    if os.path.lexists(data) and not data.is_dir():
        raise UserError(field, str(data), "is not a directory", "use the name of a directory")
    if any((data / name).exists() for name in (LOGS, CHECKPOINTS)):
        raise UserError(field, str(data), "already holds logs", "use a new directory, or remove this one")


@contextmanager
def stores(data: Path | None, field: str = "--data") -> Iterator[tuple[LogStore, CheckpointStore]]:
    """The stores of a run's logs and checkpoints: in new files in `data`, which stay, or in memory if it is None."""
    logs: LogStore
    checkpoints: CheckpointStore
    if data is None:
        logs, checkpoints = MemoryLogStore(), MemoryCheckpointStore()
    else:
        check_data(data, field)
        try:
            logs, checkpoints = FileLogStore(data / LOGS), FileCheckpointStore(data / CHECKPOINTS)
        except OSError as error:
            problem = f"cannot be written: {error.strerror}"
            raise UserError(field, str(data), problem, "use a directory that you can write to") from None
    with closing(logs), closing(checkpoints):
        yield logs, checkpoints


def _remove(out: Path, names: Iterable[str]) -> None:
    for name in names:
        (out / name).unlink(missing_ok=True)


def create(path: Path) -> TextIO:
    """Open a new text file. FileExistsError if it exists."""
    return path.open("x", encoding="utf-8", newline="\n")


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: it appears with all of `text`, or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
