"""Which partition a tuple goes to: a hash of its key that is the same in every process and version (R1)."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def partition_of(batch: pa.RecordBatch, key: Sequence[str], partitions: int) -> np.ndarray:
    """The partition, 0 .. partitions - 1, of each row; rows with equal keys (null equals null) go together."""
    mixed = np.zeros(batch.num_rows, dtype=np.uint64)
    for name in key:
        codes = _comparable(batch.column(name)).dictionary_encode(null_encoding="encode")
        hashes = np.array([zlib.crc32(repr(value).encode()) for value in codes.dictionary.to_pylist()], dtype=np.uint64)
        mixed = mixed * np.uint64(1_000_003) + hashes[codes.indices.to_numpy(zero_copy_only=False)]
    home: np.ndarray = ((mixed ^ (mixed >> np.uint64(17))) % np.uint64(partitions)).astype(np.int64)
    return home


def _comparable(column: pa.Array) -> pa.Array:
    """The column with one zero, as keys are compared, and timestamps as microseconds: how a datetime is written depends on
    the version of what made it."""
    if pa.types.is_floating(column.type):
        return pc.add(column, 0.0)
    return column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column


def split(batch: pa.RecordBatch, key: Sequence[str], partitions: int) -> list[pa.RecordBatch]:
    """The batch's rows by partition, each in its old order."""
    if partitions == 1 or batch.num_rows == 0:
        return [batch, *(batch.slice(0, 0) for _ in range(partitions - 1))]
    homes = partition_of(batch, key, partitions)
    return [batch.take(pa.array(np.flatnonzero(homes == p))) for p in range(partitions)]
