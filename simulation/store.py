"""The simulator's checkpoint store: one that can be out of reach, and come back without what it held."""

from __future__ import annotations

from logs.checkpoints import Checkpoint, StoreUnavailableError
from logs.memory_checkpoints import MemoryCheckpointStore


class SimulatedStore(MemoryCheckpointStore):
    """A `CheckpointStore` that nobody reaches while `outages`, the number of what keeps it away, is not zero."""

    def __init__(self) -> None:
        super().__init__()
        self.outages = 0

    def put(self, checkpoint: Checkpoint) -> None:
        self._reach()
        super().put(checkpoint)

    def get(self, instance: str, number: int) -> Checkpoint:
        self._reach()
        return super().get(instance, number)

    def numbers(self, instance: str) -> list[int]:
        self._reach()
        return super().numbers(instance)

    def _reach(self) -> None:
        if self.outages:
            raise StoreUnavailableError("the store is out of reach")
