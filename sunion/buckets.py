"""Buckets: the intervals [i*b, (i+1)*b) of event time. A bucket is the unit of ordering, of processing and of rollback.

All times are event time, in microseconds. INFINITY, the end of a stream, belongs to no bucket and is returned unchanged.
"""

from __future__ import annotations

from boreal.model.frames import INFINITY


def bucket_floor(time: int, bucket_us: int) -> int:
    """The start of the bucket that holds `time`. A boundary at `time` completes the buckets that end here or earlier."""
    return INFINITY if time >= INFINITY else time - time % bucket_us


def bucket_end(time: int, bucket_us: int) -> int:
    """The end (exclusive) of the bucket that holds `time`: a tuple's t_max (R4)."""
    return INFINITY if time >= INFINITY else time - time % bucket_us + bucket_us
