"""The partition of a tuple: a hash of its key, which is the same in every process and version (R1)."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from boreal.model.decimals import decimal_texts


def partition_of(batch: pa.RecordBatch, key: Sequence[str], partitions: int) -> np.ndarray:
    """The partition of each row, int64 from 0 to partitions - 1. Rows with equal keys have the same one; null equals null."""
    mixed = np.zeros(batch.num_rows, dtype=np.uint64)
    for name in key:
        codes = _comparable(batch.column(name)).dictionary_encode(null_encoding="encode")
        hashes = np.array([zlib.crc32(repr(value).encode()) for value in codes.dictionary.to_pylist()], dtype=np.uint64)
        mixed = mixed * np.uint64(1_000_003) + hashes[codes.indices.to_numpy(zero_copy_only=False)]
    home: np.ndarray = ((mixed ^ (mixed >> np.uint64(17))) % np.uint64(partitions)).astype(np.int64)
    return home


def _comparable(column: pa.Array) -> pa.Array:
    """The column with values whose text is the same wherever keys are equal: -0.0 becomes 0.0, timestamps and dates become
    numbers, because their texts depend on library versions, and decimals become texts."""
    if pa.types.is_floating(column.type):
        return pc.add(column, 0.0)
    if pa.types.is_decimal(column.type):
        return decimal_texts(column)
    if pa.types.is_date32(column.type):
        return column.view(pa.int32())
    return column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column


def split(batch: pa.RecordBatch, key: Sequence[str], partitions: int) -> list[pa.RecordBatch]:
    """The rows of each partition, in their order in the batch."""
    if partitions == 1 or batch.num_rows == 0:
        return [batch, *(batch.slice(0, 0) for _ in range(partitions - 1))]
    homes = partition_of(batch, key, partitions)
    return [batch.take(pa.array(np.flatnonzero(homes == p))) for p in range(partitions)]
