"""The folder that a run writes: which files are its own, and how an older run's make room without touching others'."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from boreal.model.errors import UserError

STREAM_FILES = ("stable.jsonl", "changes.jsonl", "dlq.jsonl")
REPORT = "report.json"
RUN_FILES = (*STREAM_FILES, REPORT)


def check(out: Path, force: bool, field: str = "--out") -> None:
    """UserError where `out` cannot be written to: it exists and `force` was not given, or it is no directory."""
    if not os.path.lexists(out):
        return
    if not out.is_dir():
        raise UserError(field, str(out), "is not a directory", "name a directory")
    if not force:
        raise UserError(field, str(out), "exists already", "add --force to replace what a run wrote there, or name another")


def prepare(out: Path, files: Iterable[str] = RUN_FILES, parts: Iterable[str] = (), field: str = "--out") -> None:
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
