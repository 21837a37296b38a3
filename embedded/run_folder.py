"""The folder of a run: its files, and how to remove those of an older run without touching other files."""

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
