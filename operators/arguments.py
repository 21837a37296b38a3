"""The arguments of an aggregate's computations, each computed and prepared once for a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from boreal.model.schema import Type
from boreal.query.expressions import Aggregation, Term
from operators.accumulators import prepare
from operators.expressions import compile_expression

_EVERY_ROW = (None, None)
"""The argument of count(*)."""


class Arguments:
    """The arguments of some aggregations; equal ones are one."""

    def __init__(self, aggregations: Iterable[Aggregation]) -> None:
        terms: dict[Term, int] = {}
        self._compiled: list[tuple[Callable[[pa.RecordBatch], pa.Array], Type]] = []
        self._places: list[int | None] = []
        for aggregation in aggregations:
            argument = aggregation.argument
            if argument is None:
                self._places.append(None)
                continue
            if argument.term not in terms:
                terms[argument.term] = len(terms)
                self._compiled.append((compile_expression(argument), argument.type))
            self._places.append(terms[argument.term])

    def values(self, rows: pa.RecordBatch) -> list[tuple[np.ndarray | None, Any]]:
        """What `prepare` makes of each aggregation's argument; (None, None) for count(*)."""
        values = [prepare(run(rows), kind) for run, kind in self._compiled]
        return [_EVERY_ROW if place is None else values[place] for place in self._places]
