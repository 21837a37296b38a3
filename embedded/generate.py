"""The generator of input: `generate:RATE,SECONDS[,KEYS]` is a source without a file.

It makes RATE tuples per second of event time, evenly spaced, for SECONDS from the start of 2026. Values are random: a string
is one of KEYS keys, an int is less than KEYS, a double is between 0 and 100 with three decimals, a decimal is too as far as its
digits reach, a bool is true or false with equal probability, and a timestamp or date is that of the tuple. The same text, seed
and stream give the same tuples.
"""

from __future__ import annotations

import math
import re
import zlib

import numpy as np
import pyarrow as pa

from boreal.model.decimals import from_unscaled
from boreal.model.errors import UserError
from boreal.model.schema import Schema, Type

START_US = 1_767_225_600_000_000
"""2026-01-01T00:00:00Z."""
PREFIX = "generate:"
_SHAPE = re.compile(r"generate:(?P<rate>\d+),(?P<seconds>\d+(\.\d+)?)(,(?P<keys>\d+))?", re.ASCII)
_DEFAULT_KEYS = 100


def generate(name: str, schema: Schema, text: str, seed: int = 0) -> pa.RecordBatch:
    """The rows of stream `name`, in order of time, with the columns of `schema.arrow`. UserError if `text` is not valid."""
    rate, count, keys = parse_generator(name, text)
    times = START_US + np.arange(count, dtype=np.int64) * 1_000_000 // rate
    draw = np.random.default_rng([seed, zlib.crc32(name.encode())])
    columns = [_values(kind, times, keys, draw) for _, kind in schema.columns]
    return pa.RecordBatch.from_arrays([pa.array(times), *columns], schema=schema.arrow)


def parse_generator(name: str, text: str) -> tuple[int, int, int]:
    """What a generator of stream `name` makes: tuples per second, tuples in all, and keys. UserError if `text` is not valid."""
    match = _SHAPE.fullmatch(text)
    if match is None or int(match["rate"]) == 0 or float(match["seconds"]) == 0 or match["keys"] == "0":
        raise UserError(
            "--source",
            f"{name}={text}",
            "is not a valid generator",
            "write generate:RATE,SECONDS[,KEYS], each above 0, such as generate:1000,60 or generate:1000,60,20",
        )
    rate = int(match["rate"])
    return rate, math.ceil(rate * float(match["seconds"])), int(match["keys"] or _DEFAULT_KEYS)


def _values(kind: Type, times: np.ndarray, keys: int, draw: np.random.Generator) -> pa.Array:
    count = len(times)
    if kind is Type.STRING:
        names = pa.array([f"k{number}" for number in range(keys)])
        return names.take(pa.array(draw.integers(keys, size=count)))
    if kind is Type.INT:
        return pa.array(draw.integers(keys, size=count))
    if kind is Type.DOUBLE:
        return pa.array(draw.uniform(0, 100, size=count).round(3))
    if kind.is_decimal:
        most = 10 ** min(kind.digits, kind.after + 2, 18)
        return from_unscaled(draw.integers(most, size=count).tolist(), kind.arrow)
    if kind is Type.BOOL:
        return pa.array(draw.integers(2, size=count).astype(bool))
    return pa.array(times).cast(Type.TIMESTAMP.arrow).cast(kind.arrow)
