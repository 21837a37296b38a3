"""Encoded checkpoints in the memory of one process, so that a test or the simulator can lose or damage one."""

from __future__ import annotations

from logs.checkpoints import Checkpoint, encode_checkpoint, latest_sound, read_checkpoint


class MemoryCheckpointStore:
    """A `CheckpointStore` in memory."""

    def __init__(self) -> None:
        self.damaged: list[tuple[str, int]] = []
        self.blobs: dict[str, dict[int, bytes]] = {}
        """The encoded checkpoints, by instance and number; public, so that faults can be injected."""

    def put(self, checkpoint: Checkpoint) -> None:
        self.blobs.setdefault(checkpoint.instance, {})[checkpoint.number] = encode_checkpoint(checkpoint)

    def get(self, instance: str, number: int) -> Checkpoint:
        if number not in self.blobs.get(instance, {}):
            raise KeyError((instance, number))
        return read_checkpoint(self.blobs[instance][number], instance, number)

    def latest(self, instance: str) -> Checkpoint | None:
        return latest_sound(self, instance)

    def numbers(self, instance: str) -> list[int]:
        return sorted(self.blobs.get(instance, {}))

    def drop(self, instance: str, below: int) -> None:
        for number in self.numbers(instance):
            if number < below:
                del self.blobs[instance][number]

    def close(self) -> None:
        """Nothing to close."""
