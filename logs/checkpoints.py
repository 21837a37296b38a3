"""Checkpoints, their encoding, and the interface of checkpoint stores (design: Operators; R19, R26).

    prelude   magic 'bC', version u8, size of the head u32, size of the state u64 (little-endian)
    head      all fields except the state, as compact JSON
    state     as encoded by the operators
    digest    SHA-256 of everything before it
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from typing import Any, Protocol

from boreal.model.errors import BorealError, CorruptError

_VERSION = 1
_MAGIC = b"bC"
_PRELUDE = struct.Struct("<2sBIQ")
_DIGEST_SIZE = hashlib.sha256().digest_size


class StoreUnavailableError(BorealError):
    """The store cannot be reached, or cannot store the data. Nothing is known to have changed. Try again later."""


@dataclass(frozen=True)
class Checkpoint:
    """An instance's state at the edge of a bucket, and what is needed to continue from there (see
    reconcile.events.StoreCheckpoint)."""

    instance: str
    """Name of the instance."""
    number: int
    """Rises with every checkpoint of the instance."""
    time: int
    """Event time of the state (us): the edge of a bucket."""
    needs: int
    """Event time (us) of the oldest input that is read again."""
    next_ids: tuple[tuple[str, int], ...]
    """('stream/partition', id of the next row) of each output."""
    inputs: tuple[tuple[str, int], ...]
    """('stream/partition', id of the first row to read again) of each input."""
    state: bytes
    """The encoded state of the fragment's operators."""


class CheckpointStore(Protocol):
    """Checkpoints by (instance, number). A put that did not finish counts as absent (R19).

    If the store is in another process, every method except `close` may raise StoreUnavailableError, within seconds.
    """

    @property
    def damaged(self) -> list[tuple[str, int]]:
        """(instance, number) of each damaged checkpoint that `latest` skipped, in the order of discovery."""
        ...

    def put(self, checkpoint: Checkpoint) -> None:
        """Store a checkpoint; replaces one with the same number. Atomic, even if a process crashes meanwhile."""
        ...

    def get(self, instance: str, number: int) -> Checkpoint:
        """The checkpoint. KeyError if there is none; CorruptError if it is damaged."""
        ...

    def latest(self, instance: str) -> Checkpoint | None:
        """The undamaged checkpoint with the highest number, None if there is none. Damaged ones are added to `damaged`."""
        ...

    def numbers(self, instance: str) -> list[int]:
        """The numbers of the instance's checkpoints in ascending order, including damaged ones."""
        ...

    def drop(self, instance: str, below: int) -> None:
        """Delete the instance's checkpoints with a number below this one."""
        ...

    def close(self) -> None:
        """Close files and connections. The store must not be used afterwards. Checkpoints are kept."""
        ...


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The encoded checkpoint. Equal checkpoints give equal bytes."""
    fields = {
        "instance": checkpoint.instance,
        "number": checkpoint.number,
        "time": checkpoint.time,
        "needs": checkpoint.needs,
        "next_ids": checkpoint.next_ids,
        "inputs": checkpoint.inputs,
    }
    head = json.dumps(fields, separators=(",", ":")).encode("ascii")
    prelude = _PRELUDE.pack(_MAGIC, _VERSION, len(head), len(checkpoint.state))
    digest = hashlib.sha256(prelude + head)
    digest.update(checkpoint.state)
    return b"".join((prelude, head, checkpoint.state, digest.digest()))


def decode_checkpoint(data: bytes) -> Checkpoint:
    """The checkpoint that `encode_checkpoint` encoded. CorruptError says what is wrong: not a checkpoint, an unknown version,
    the wrong length, or damage."""
    if len(data) < _PRELUDE.size:
        raise CorruptError(f"the checkpoint is cut short: {len(data)} bytes")
    magic, version, head_size, state_size = _PRELUDE.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptError(f"not a checkpoint: it begins with {magic!r}, not {_MAGIC!r}")
    if version != _VERSION:
        raise CorruptError(f"unknown version of checkpoint: {version}; this program reads version {_VERSION}")
    state_start = _PRELUDE.size + head_size
    end = state_start + state_size
    if len(data) != end + _DIGEST_SIZE:
        raise CorruptError(f"the checkpoint has {len(data)} bytes instead of {end + _DIGEST_SIZE}")
    if hashlib.sha256(memoryview(data)[:end]).digest() != data[end:]:
        raise CorruptError("the checkpoint's digest is wrong: its bytes were damaged")
    try:
        return _checkpoint(json.loads(data[_PRELUDE.size : state_start]), data[state_start:end])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(f"the checkpoint's head does not have its fields: {error!r}") from error


def _checkpoint(fields: dict[str, Any], state: bytes) -> Checkpoint:
    return Checkpoint(
        fields["instance"],
        fields["number"],
        fields["time"],
        fields["needs"],
        tuple((log, first) for log, first in fields["next_ids"]),
        tuple((log, first) for log, first in fields["inputs"]),
        state,
    )


def read_checkpoint(data: bytes, instance: str, number: int) -> Checkpoint:
    """The checkpoint that a store found under this instance and number. CorruptError if it is a different checkpoint."""
    checkpoint = decode_checkpoint(data)
    if (checkpoint.instance, checkpoint.number) != (instance, number):
        found = f"number {checkpoint.number} of {checkpoint.instance}"
        raise CorruptError(f"checkpoint {number} of {instance} is expected, but {found} is stored there")
    return checkpoint


def latest_sound(store: CheckpointStore, instance: str) -> Checkpoint | None:
    """`CheckpointStore.latest`, for any store."""
    for number in reversed(store.numbers(instance)):
        try:
            return store.get(instance, number)
        except KeyError:
            continue  # dropped since it was listed, by another process
        except CorruptError:
            if (instance, number) not in store.damaged:
                store.damaged.append((instance, number))
    return None
