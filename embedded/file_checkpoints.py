"""Checkpoints in files: ROOT/INSTANCE.checkpoints/NUMBER.checkpoint.

A checkpoint is written under another name, synced, and renamed: what a crash leaves behind is an unfinished file that
nobody takes for a checkpoint, and that the next put of the number overwrites or `drop` removes.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from embedded.file_log import sync_directory
from logs.checkpoints import Checkpoint, encode_checkpoint, latest_sound, read_checkpoint

_DONE = ".checkpoint"
_UNFINISHED = ".unfinished"


class FileCheckpointStore:
    """A `CheckpointStore` in a directory. Several processes may share it, each writing its own instances."""

    def __init__(self, root: Path) -> None:
        self.damaged: list[tuple[str, int]] = []
        self._root = root
        root.mkdir(parents=True, exist_ok=True)

    def put(self, checkpoint: Checkpoint) -> None:
        path = self._path(checkpoint.instance, checkpoint.number)
        unfinished = path.with_suffix(_UNFINISHED)
        if not path.parent.exists():
            path.parent.mkdir()
            sync_directory(self._root)
        with unfinished.open("wb") as file:
            file.write(encode_checkpoint(checkpoint))
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        sync_directory(path.parent)

    def get(self, instance: str, number: int) -> Checkpoint:
        try:
            data = self._path(instance, number).read_bytes()
        except FileNotFoundError:
            raise KeyError((instance, number)) from None
        return read_checkpoint(data, instance, number)

    def latest(self, instance: str) -> Checkpoint | None:
        return latest_sound(self, instance)

    def numbers(self, instance: str) -> list[int]:
        return sorted(int(path.stem) for path in self._directory(instance).glob("*" + _DONE))

    def drop(self, instance: str, below: int) -> None:
        for suffix in (_DONE, _UNFINISHED):
            for path in sorted(self._directory(instance).glob("*" + suffix)):
                if int(path.stem) < below:
                    path.unlink()

    def close(self) -> None:
        """There is nothing to release."""

    def _directory(self, instance: str) -> Path:
        return self._root / f"{quote(instance, safe='')}.checkpoints"

    def _path(self, instance: str, number: int) -> Path:
        return self._directory(instance) / f"{number:020d}{_DONE}"
