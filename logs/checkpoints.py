"""What a checkpoint is, how it is encoded, and what every store of them offers (design: Operators; R19, R26).

    prelude   magic 'bC', version u8, size of the head u32, size of the state u64 (little-endian)
    head      all fields but the state, as compact JSON
    state     as the operators encoded it
    digest    SHA-256 of all before it
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
    """The store cannot be reached, or cannot take what it was given: nothing is known to have changed. Try again later."""


@dataclass(frozen=True)
class Checkpoint:
    """An instance's state at a bucket's edge, and what it takes to go on from there.

    instance: its name. number: rises with every checkpoint of the instance. time, needs, next_ids, inputs: as in
    reconcile.events.StoreCheckpoint. state: the state of the fragment's operators, encoded.
    """

    instance: str
    number: int
    time: int
    needs: int
    next_ids: tuple[tuple[str, int], ...]
    inputs: tuple[tuple[str, int], ...]
    state: bytes


class CheckpointStore(Protocol):
    """Checkpoints by (instance, number). A put that did not finish counts as absent (R19).

    Where the store is another process, every method but `close` may raise StoreUnavailableError, within seconds.
    """

    @property
    def damaged(self) -> list[tuple[str, int]]:
        """The (instance, number) of each damaged checkpoint that `latest` passed over, in the order of discovery."""
        ...

    def put(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint, in place of one of the same number. All or nothing, whatever crashes meanwhile."""
        ...

    def get(self, instance: str, number: int) -> Checkpoint:
        """KeyError if there is none; CorruptError if it is damaged."""
        ...

    def latest(self, instance: str) -> Checkpoint | None:
        """The checkpoint of the highest number that is sound; damaged ones are entered in `damaged`."""
        ...

    def numbers(self, instance: str) -> list[int]:
        """The numbers of the instance's checkpoints, damaged ones too, rising."""
        ...

    def drop(self, instance: str, below: int) -> None:
        """Forget the instance's checkpoints with a number below this one."""
        ...

    def close(self) -> None:
        """Let go of files and connections. The store must not be used afterwards; checkpoints are kept."""
        ...


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The checkpoint's bytes; equal checkpoints give equal bytes."""
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
    """The checkpoint that `encode_checkpoint` wrote. CorruptError says whether the bytes are no checkpoint, of an
    unknown version, of the wrong length or damaged."""
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
    """The checkpoint that a store found in the place of this instance and number. CorruptError if it is another's."""
    checkpoint = decode_checkpoint(data)
    if (checkpoint.instance, checkpoint.number) != (instance, number):
        found = f"number {checkpoint.number} of {checkpoint.instance}"
        raise CorruptError(f"in the place of checkpoint {number} of {instance} lies {found}")
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
