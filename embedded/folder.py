"""The folders that a run writes: which files are its own, and how an older run's make room without touching others'."""

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
    """UserError where `out` cannot be written to: it exists and `force` was not given, or it is no directory."""
    if not os.path.lexists(out):
        return
    if not out.is_dir():
        raise UserError(field, str(out), "is not a directory", "name a directory")
    if not force:
        raise UserError(field, str(out), "exists already", "add --force to replace what a run wrote there, or name another")


def make(out: Path, files: Iterable[str] = RUN_FILES, parts: Iterable[str] = (), field: str = "--out") -> None:
    """Create `out`, or clear it of `files` and of runs in its folders `parts`. Files of any other name are left alone."""
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
        raise UserError(field, str(error.filename or out), problem, "name a directory that can be written") from None


def check_data(data: Path, field: str = "--data") -> None:
    """UserError where a run cannot keep its logs and checkpoints in `data`: another's are there, or it is no directory."""
    if os.path.lexists(data) and not data.is_dir():
        raise UserError(field, str(data), "is not a directory", "name a directory")
    if any((data / name).exists() for name in (LOGS, CHECKPOINTS)):
        raise UserError(field, str(data), "holds logs already", "name a new directory, or remove that one")


@contextmanager
def stores(data: Path | None, field: str = "--data") -> Iterator[tuple[LogStore, CheckpointStore]]:
    """A run's logs and checkpoints: new files in `data`, which stay, or in memory where it is None."""
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
            raise UserError(field, str(data), problem, "name a directory that can be written") from None
    with closing(logs), closing(checkpoints):
        yield logs, checkpoints


def _remove(out: Path, names: Iterable[str]) -> None:
    for name in names:
        (out / name).unlink(missing_ok=True)


def create(path: Path) -> TextIO:
    """A new text file; FileExistsError if there is one."""
    return path.open("x", encoding="utf-8", newline="\n")


def write_whole(path: Path, text: str) -> None:
    """The file is there with all of `text`, or it is not there."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
