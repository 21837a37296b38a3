"""Random rows that operators find hard: nulls, NaN, both zeros, ints at the ends of 64 bits, all kinds of texts, many ties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

from boreal.model.schema import WINDOW, Schema, Type

_LARGEST = (1 << 63) - 1
_VALUES: Mapping[Type, Sequence[Any]] = {
    Type.STRING: (None, "", "a", "b", "B", "é", "\U0001f600", "a longer text, with a comma"),
    Type.INT: (None, 0, 1, 1, 2, -1, 7, _LARGEST, -_LARGEST - 1, (1 << 53) + 1),
    Type.DOUBLE: (None, 0.0, -0.0, 0.1, 0.2, 0.3, -1.5, 1e16, -1e16, 1e308, float("nan"), float("inf"), float("-inf"), 5e-324),
    Type.BOOL: (None, True, False),
    Type.TIMESTAMP: (None, *(datetime(year, 12, 31, 23, tzinfo=UTC) for year in (1, 1969, 2013))),
    Type.DATE: (None, date(2013, 1, 31), date(1, 1, 1), date(9999, 12, 31)),
}


def sample_rows(
    schema: Schema | Mapping[str, str],
    seed: int,
    count: int = 40,
    *,
    span_us: int = 40,
    values: Mapping[str, Sequence[Any]] | None = None,
) -> pa.RecordBatch:
    """Random rows of a stream, in the order of their times, which are from 0 to `span_us`. values: to draw some columns from,
    instead of the values that are hard for their types."""
    columns = schema if isinstance(schema, Schema) else Schema.of(dict(schema))
    rng = Random(seed)
    times = sorted(rng.randrange(max(span_us, 1)) for _ in range(count))
    made: dict[str, list[Any]] = {"time": list(times)}
    if columns.windowed:
        made |= {WINDOW[0]: [time - 9 for time in times], WINDOW[1]: [time + 1 for time in times]}
    for name, kind in columns.columns:
        some = (values or {}).get(name) or _values_of(kind)
        made[name] = [rng.choice(some) for _ in range(count)]
    return pa.RecordBatch.from_pydict(made, schema=columns.arrow)


def _values_of(kind: Type) -> Sequence[Any]:
    if not kind.is_decimal:
        return _VALUES[kind]
    least, most = Decimal(1).scaleb(-kind.after), Decimal(10**kind.digits - 1).scaleb(-kind.after)
    return None, Decimal(0), least, -least, most, -most
