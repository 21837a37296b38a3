"""Queries in Python: the same model as the query file, checked by the same rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from boreal.model.errors import UserError
from boreal.model.schema import Type
from boreal.query.spec import Engines, Mode, Policy, Query, load_query

Span = str | timedelta
"""A duration: text as in the file ("10m"), or a timedelta."""


@dataclass(frozen=True)
class Ref:
    """A reference to a stream or operator of the query, from which operators read."""

    name: str
    """The name of the stream or operator."""


@dataclass(frozen=True)
class Tumbling:
    """Windows of one size that follow one another without gaps or overlaps."""

    size: Span
    """The length of a window, in event time."""

    def to_dict(self) -> dict[str, Span]:
        return {"tumbling": self.size}


@dataclass(frozen=True)
class Sliding:
    """Overlapping windows of one size."""

    size: Span
    """The length of a window, in event time."""
    every: Span
    """The interval between the starts of two windows, in event time."""

    def to_dict(self) -> dict[str, Span]:
        return {"sliding": self.size, "every": self.every}


WindowShape = Tumbling | Sliding


@dataclass(frozen=True)
class Session:
    """Windows of each group's own, for aggregates: rows of less than a gap between each other."""

    gap: Span
    """The event time without a row of the group that ends its session."""
    longest: Span | None = None
    """A session also ends at each whole multiple of this; None: it may go on for ever."""

    def to_dict(self) -> dict[str, Span]:
        return {"session": self.gap} if self.longest is None else {"session": self.gap, "longest": self.longest}


class QueryBuilder:
    """Collects streams, operators and fragments by name; `build` makes and checks the query.

    Each method returns a Ref, from which later operators read. A repeated name raises UserError immediately; `build` raises
    it for all other errors. The error has the field that the query file would have.

        builder = QueryBuilder("departures")
        ewr = builder.stream("ewr", time="departed_at", schema={"carrier": "string", "dep_delay": "double"})
        late = builder.filter("late", ewr, "dep_delay > 15")
        query = builder.build(late, delay_threshold="3s")
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._streams: dict[str, object] = {}
        self._operators: dict[str, object] = {}
        self._fragments: dict[str, object] = {}

    def stream(
        self,
        name: str,
        *,
        time: str,
        schema: Mapping[str, Type | str | Mapping[str, str]],
        topic: str | None = None,
        format: Literal["json", "csv", "arrow", "avro", "protobuf", "json_schema"] = "json",
        csv: Mapping[str, Any] | None = None,
        registry: str | None = None,
        lacking: Literal["dead_letter", "nulls"] = "dead_letter",
        time_unit: Literal["s", "ms", "us", "ns"] = "ms",
        key: Sequence[str] = (),
        boundary: Literal["data", "clock", "producer"] = "data",
        disorder: Span = "0s",
        ahead: Span = "1m",
        idle: Span = "30s",
        late: Literal["dead_letter", "clamp"] = "dead_letter",
        types: Literal["coerce", "refuse"] = "coerce",
    ) -> Ref:
        """A source stream; see `boreal.query.spec.Stream`. schema: column -> its type, or as {"type": ..., "path": ...}.
        csv: the fields of `boreal.query.csv_form.Csv`."""
        stream: dict[str, object] = {
            "topic": topic,
            "format": format,
            "csv": dict(csv) if csv is not None else None,
            "registry": registry,
            "lacking": lacking,
            "time": time,
            "time_unit": time_unit,
            "schema": dict(schema),
            "key": list(key),
            "boundary": boundary,
            "disorder": disorder,
            "ahead": ahead,
            "idle": idle,
            "late": late,
            "types": types,
        }
        return self._add("streams", self._streams, name, stream)

    def filter(self, name: str, source: Ref, where: str) -> Ref:
        """The rows of `source` for which the SQL condition `where` is true."""
        return self._operator(name, {"filter": source.name, "where": where})

    def map(self, name: str, source: Ref, select: Mapping[str, str]) -> Ref:
        """A new row for each row of `source`. select: output column -> SQL expression."""
        return self._operator(name, {"map": source.name, "select": dict(select)})

    def union(self, name: str, *sources: Ref) -> Ref:
        """The rows of several streams with the same schema, merged."""
        return self._operator(name, {"union": [source.name for source in sources]})

    def aggregate(
                self,
        name: str,
        source: Ref,
        *,
        window: WindowShape | Session,
        compute: Mapping[str, str],
        by: Sequence[str] = (),
    ) -> Ref:
        """One row for each window and group. compute: output column -> aggregation. by: the columns of a group."""
        spec = {"aggregate": source.name, "window": window.to_dict(), "by": list(by), "compute": dict(compute)}
        return self._operator(name, spec)

    def join(
        self,
        name: str,
        left: Ref,
        right: Ref,
        *,
        on: Sequence[str],
        within: Span,
        how: Literal["inner", "left"] = "inner",
    ) -> Ref:
        """Pairs of rows with equal values in the columns `on` and event times at most `within` apart."""
        return self._operator(name, {"join": [left.name, right.name], "on": list(on), "within": within, "how": how})

    def lookup(
        self,
        name: str,
        left: Ref,
        table: Ref,
        *,
        on: Sequence[str],
        within: Span | None = None,
        deleted: str | None = None,
        how: Literal["inner", "left"] = "inner",
    ) -> Ref:
        """The rows of `left`, each with the newest row of `table` that has equal values in the columns `on`, as of its time.
        within: by how much that may be older; None: by any time. deleted: the bool column that is true in rows that delete."""
        spec: dict[str, object] = {"lookup": [left.name, table.name], "on": list(on), "deleted": deleted, "how": how}
        return self._operator(name, spec if within is None else {**spec, "within": within})

    def distinct(self, name: str, source: Ref, *, on: Sequence[str], window: Tumbling | None = None) -> Ref:
        """The first row for each value of the columns `on`, in each window or, without a window, once."""
        spec: dict[str, object] = {"distinct": source.name, "on": list(on)}
        return self._operator(name, spec if window is None else {**spec, "window": window.to_dict()})

    def deduplicate(self, name: str, source: Ref, *, on: Sequence[str], within: Span) -> Ref:
        """The rows whose values in the columns `on` no row has had less than `within` before."""
        return self._operator(name, {"deduplicate": source.name, "on": list(on), "within": within})

    def top(self, name: str, source: Ref, *, k: int, order_by: str, window: WindowShape, by: Sequence[str] = ()) -> Ref:
        """The first k rows of each window and group in the order `order_by`, with their rank."""
        spec = {"top": source.name, "k": k, "order_by": order_by, "window": window.to_dict(), "by": list(by)}
        return self._operator(name, spec)

    def python(
        self,
        name: str,
        source: Ref,
        operator: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        version: str | None = None,
    ) -> Ref:
        """An operator of an installed package, by its registered name. version: that the package must have."""
        spec = {"python": source.name, "operator": operator, "with": dict(parameters or {})}
        return self._operator(name, spec if version is None else {**spec, "version": version})

    def fragment(
        self,
        name: str,
        *operators: Ref,
        replicas: int | None = None,
        shards: int | None = None,
        engine: Engines | None = None,
    ) -> None:
        """A part of the query that one set of replicas runs. None stands for the value of the query."""
        spec = {
            "operators": [operator.name for operator in operators],
            "replicas": replicas,
            "shards": shards,
            "engine": engine,
        }
        self._add("fragments", self._fragments, name, spec)

    def build(
        self,
        output: Ref,
        *,
        delay_threshold: Span = "3s",
        reconcile: Mode | str = Mode.CHECKPOINT_REDO,
        policy: Policy | str = "process/process",
        replicas: int = 1,
        shards: int = 1,
        engine: Engines | None = None,
        tuning: Mapping[str, Any] | None = None,
    ) -> Query:
        """The query, equal to the query of a file with the same content. UserError if it is not valid."""
        return load_query(
            {
                "name": self._name,
                "streams": self._streams,
                "operators": self._operators,
                "output": output.name,
                "delay_threshold": delay_threshold,
                "reconcile": reconcile,
                "policy": policy,
                "replicas": replicas,
                "shards": shards,
                "engine": engine,
                "fragments": self._fragments or None,
                "tuning": dict(tuning or {}),
            }
        )

    def _operator(self, name: str, spec: dict[str, Any]) -> Ref:
        return self._add("operators", self._operators, name, spec)

    @staticmethod
    def _add(group: str, entries: dict[str, object], name: str, spec: dict[str, Any]) -> Ref:
        if name in entries:
            raise UserError(f"{group}.{name}", name, "is already in the query", "use another name")
        entries[name] = spec
        return Ref(name)
