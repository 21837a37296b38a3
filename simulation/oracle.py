"""The operators' oracle: the expected rows of every log of a query, computed from all rows at once in a few lines of plain
Python for each operator.

It shares no code with operators/, sunion/ or reconcile/: a row is a dict, an operator a function of lists of rows. Its input is
the plan (which fragment reads what, by which key) and the complete feeds; there are no failures. Rows of one log are in the
order that R5 and R6 require.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from boreal.model.durations import parse_duration
from boreal.model.frames import INFINITY, LogId
from boreal.model.partition import partition_of
from boreal.model.schema import Schema
from boreal.query.plan import Edge, Fragment, Node, Plan
from boreal.query.spec import Aggregate, Deduplicate, Distinct, Filter, Join, Lookup, Map, Python, Top, Union, Window
from simulation.expressions import Row, aggregated, condition, is_about, selected
from simulation.feed import StreamFeed
from simulation.own_operators import TOTALS

Rows = list[Row]


class Oracle:
    """The rows of every log that instances write, by `LogId.key`; `seen` counts edge cases, such as rows on a window's edge."""

    def __init__(self, plan: Plan, feeds: Mapping[str, StreamFeed]) -> None:
        self.rows: dict[str, Rows] = {}
        self.schemas: dict[str, Schema] = {}
        self.seen: Counter[str] = Counter()
        sources = {name: _rows_of(feed.batch.slice(0, feed.counts[-1])) for name, feed in feeds.items()}
        for edge in plan.sources:
            self._lay_out(edge, 0, sources[edge.operator])
            self.seen["row on a bucket's edge"] += sum(row["time"] % plan.bucket_us == 0 for row in sources[edge.operator])
        for fragment in plan.fragments:
            for shard in range(fragment.shards):
                self._run(fragment, shard)

    def batch(self, key: str) -> pa.RecordBatch:
        """A log's rows as a batch. Not for logs with an `ApproximateValue`."""
        schema = self.schemas[key].arrow
        named = zip(schema.names, schema.types, strict=True)
        columns = [pa.array([row[name] for row in self.rows[key]], kind) for name, kind in named]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _lay_out(self, edge: Edge, shard: int, rows: Rows) -> None:
        """Split the output of one shard over the readers' partitions."""
        parts: list[Rows] = [[] for _ in range(edge.partitions)]
        if edge.partitions == 1:
            parts[0] = rows
        else:
            batch = pa.RecordBatch.from_pylist(
                [{name: row[name] for name in edge.key} for row in rows],
                schema=pa.schema([edge.schema.arrow.field(name) for name in edge.key]),
            )
            for row, home in zip(rows, partition_of(batch, edge.key, edge.partitions).tolist(), strict=True):
                parts[home].append(row)
        for reader, part in enumerate(parts):
            key = LogId(edge.name, "", edge.partition(shard, reader)).key
            self.rows[key], self.schemas[key] = part, edge.schema

    def _run(self, fragment: Fragment, shard: int) -> None:
        made: dict[str, Rows] = {}
        for entry in fragment.inputs:
            ports = [
                self.rows[LogId(edge.name, "", edge.partition(producer, shard)).key]
                for edge in entry.edges
                for producer in range(edge.producers)
            ]
            made[entry.name] = by_time([row for rows in ports for row in rows])
        for node in fragment.nodes:
            made[node.name] = self._operate(node, [made[name] for name in node.inputs])
        for edge in fragment.outputs:
            self._lay_out(edge, shard, made[edge.operator])

    def _operate(self, node: Node, inputs: list[Rows]) -> Rows:
        match node.spec:
            case Filter() as spec:
                keeps = condition(spec.where)
                return [row for row in inputs[0] if keeps(row) is True]
            case Map() as spec:
                edges = [name for name in ("time", "window_start", "window_end") if name in node.schema.arrow.names]
                runs = {name: selected(sql) for name, sql in spec.select.items()}
                return [{name: row[name] for name in edges} | {n: run(row) for n, run in runs.items()} for row in inputs[0]]
            case Union():
                return by_time([row for rows in inputs for row in rows])
            case Aggregate(window=Window(session=int())) as spec:
                return self._sessions(inputs[0], spec)
            case Aggregate() as spec:
                return self._windows(inputs[0], spec, partial(_grouped, spec))
            case Top() as spec:
                return self._windows(inputs[0], spec, partial(_ranked, spec))
            case Distinct() as spec:
                return self._distinct(inputs[0], spec)
            case Deduplicate() as spec:
                return self._deduplicate(inputs[0], spec)
            case Lookup() as spec:
                return self._lookup(node, inputs[0], inputs[1], spec)
            case Join() as spec:
                return self._join(node, inputs[0], inputs[1], spec)
            case Python() as spec:
                given: Any = spec.parameters
                window_us = parse_duration(given["window"], "window") if "window" in given else None
                return (_totals if spec.operator == TOTALS else _newest)(inputs[0], given["by"], window_us or INFINITY)
        raise AssertionError(f"{node.name}: the oracle knows no {node.spec.kind}")

    def _windows(self, rows: Rows, spec: Aggregate | Top, results: Callable[[list[Rows]], Rows]) -> Rows:
        size, every = spec.window.size_us, spec.window.every_us
        pane = math.gcd(size, every)
        windows: dict[int, dict[tuple[Any, ...], dict[int, Rows]]] = {}
        for row in rows:
            time = row["time"]
            key = tuple(sort_key(row[name]) for name in spec.by)
            self.seen["row on a window's edge"] += time % every == 0
            for start in range(time // every * every, time - size, -every):
                windows.setdefault(start, {}).setdefault(key, {}).setdefault(time // pane, []).append(row)
        found: Rows = []
        for start in sorted(windows):
            edges = {"time": start + size - 1, "window_start": start, "window_end": start + size}
            for key in sorted(windows[start]):
                found += [{**row, **edges} for row in results(list(windows[start][key].values()))]
        return found

    def _sessions(self, rows: Rows, spec: Aggregate) -> Rows:
        """Walk through the rows: each extends the session of its group, or begins the next one."""
        gap, longest = spec.window.session or 0, spec.window.longest or INFINITY
        last: dict[tuple[Any, ...], Rows] = {}
        every: list[tuple[tuple[Any, ...], Rows]] = []

        def end(session: Rows) -> int:
            time = int(session[-1]["time"])
            return min(time + gap, (time // longest + 1) * longest)

        for row in rows:
            key = tuple(sort_key(row[name]) for name in spec.by)
            self.seen["row on a session's end"] += key in last and row["time"] == end(last[key])
            if key in last and row["time"] < end(last[key]):
                last[key].append(row)
            else:
                last[key] = [row]
                every.append((key, last[key]))
        found: Rows = []
        for until, _, session in sorted((end(session), key, session) for key, session in every):
            edges = {"time": until - 1, "window_start": session[0]["time"], "window_end": until}
            found += [{**row, **edges} for row in _grouped(spec, [session])]
        return found

    def _distinct(self, rows: Rows, spec: Distinct) -> Rows:
        seen, found = set(), []
        for row in rows:
            window = row["time"] // spec.window.size_us if spec.window else None
            key = (window, *(sort_key(row[name]) for name in spec.on))
            if key not in seen:
                seen.add(key)
                found.append(row)
        return found

    def _deduplicate(self, rows: Rows, spec: Deduplicate) -> Rows:
        last: dict[tuple[Any, ...], int] = {}
        found = []
        for row in rows:
            key, time = tuple(sort_key(row[name]) for name in spec.on), row["time"]
            self.seen["repeat exactly within"] += time - last.get(key, time) == spec.within
            if key not in last or time - last[key] >= spec.within:
                found.append(row)
            last[key] = time
        return found

    def _lookup(self, node: Node, left: Rows, right: Rows, spec: Lookup) -> Rows:
        """Look through the whole table for each row."""
        theirs: dict[tuple[Any, ...], Rows] = {}
        for row in right:
            theirs.setdefault(tuple(sort_key(row[name]) for name in spec.on), []).append(row)
        ours = node.input_schemas[0].names
        brought = [name for name in node.input_schemas[1].names if name not in spec.on and name != spec.deleted]
        names = dict(zip(node.schema.names[len(ours) :], brought, strict=True))
        found: Rows = []
        for row in left:
            key, time = tuple(sort_key(row[name]) for name in spec.on), row["time"]
            newest = [other for other in theirs.get(key, ()) if other["time"] <= time and NULL not in key][-1:]
            self.seen["row of the table at the same time"] += any(other["time"] == time for other in newest)
            self.seen["row of the table exactly within"] += any(time - other["time"] == spec.within for other in newest)
            if spec.deleted is not None:
                self.seen["row of the table that is deleted"] += any(other[spec.deleted] is True for other in newest)
                newest = [other for other in newest if other[spec.deleted] is not True]
            partner = next((other for other in newest if spec.within is None or time - other["time"] <= spec.within), None)
            if partner is not None:
                found.append(row | {new: partner[old] for new, old in names.items()})
            elif spec.how == "left":
                found.append(row | dict.fromkeys(names))
        return found

    def _join(self, node: Node, left: Rows, right: Rows, spec: Join) -> Rows:
        """Check every pair of rows; results are ordered by (time, the left row's place, the right one's)."""
        theirs: dict[tuple[Any, ...], list[tuple[int, int, Row]]] = {}
        for place, row in enumerate(right):
            theirs.setdefault(tuple(sort_key(row[name]) for name in spec.on), []).append((row["time"], place, row))
        ours = node.input_schemas[0].names
        brought = [name for name in node.input_schemas[1].names if name not in spec.on]
        names = dict(zip(node.schema.names[len(ours) :], brought, strict=True))
        found: list[tuple[int, int, int, Row]] = []
        for place, row in enumerate(left):
            base, time = {name: row[name] for name in ours}, row["time"]
            key = tuple(sort_key(row[name]) for name in spec.on)
            alike = () if NULL in key else theirs.get(key, ())
            partners = [entry for entry in alike if -spec.within <= entry[0] - time <= spec.within]
            self.seen["pair exactly within"] += sum([abs(at - time) == spec.within for at, *_ in partners])
            for at, other, match in partners:
                later = max(time, at)
                found.append((later, place, other, base | {new: match[old] for new, old in names.items()} | {"time": later}))
            if spec.how == "left" and not partners:
                end = time + spec.within
                found.append((end, place, -1, base | dict.fromkeys(names) | {"time": end}))
        return [row for *_, row in sorted(found, key=lambda entry: entry[:3])]


class ApproximateValue:
    """A value that may differ by rounding; size: the magnitude of the values that it was computed from."""

    __slots__ = ("size", "value")

    def __init__(self, value: float | None, size: float) -> None:
        self.value, self.size = value, size

    def is_near(self, given: Any) -> bool:
        """Whether a given value is as near as it must be."""
        return is_about(given, self.value, self.size)


class Estimate(ApproximateValue):
    """A number of distinct values that was estimated. Of so few as one group has, values that share one of the sketch's 4,096
    registers are counted once: about n^2 / 8,192 of n, as chance has it."""

    def __init__(self, value: int) -> None:
        super().__init__(value, value)

    def is_near(self, given: Any) -> bool:
        shared = self.size**2 / 8_192
        return given is not None and abs(given - self.size) <= 2 + shared + 5 * shared**0.5


def by_time(rows: Rows) -> Rows:
    """In order of time; rows of equal times keep their order."""
    return sorted(rows, key=lambda row: row["time"])


NULL = (0,)
_NAN = (1,)


def sort_key(value: Any) -> tuple[Any, ...]:
    """A value's sort key in its column, in the order of groups: null, NaN, then the other values. Equal values have equal
    keys."""
    if value is None:
        return NULL
    if value != value:
        return _NAN
    return (2, value.encode() if isinstance(value, str) else value)


def comparable(value: Any) -> Any:
    """A value as it appears in a group's key: -0.0 becomes 0.0."""
    return value + 0.0 if isinstance(value, float) else value


def _grouped(spec: Aggregate, panes: list[Rows]) -> Rows:
    """One group's row."""
    head = next(row for pane in panes for row in pane)
    result = {name: comparable(head[name]) for name in spec.by}
    for name, text in spec.compute.items():
        result[name] = aggregated(text, panes)
        if text == "stddev(v)":
            sizes = [abs(row["v"]) for pane in panes for row in pane if row["v"] is not None]
            result[name] = ApproximateValue(result[name], max(sizes, default=0.0))
        elif text.startswith(("approx_count_distinct", "approx_distinct")):
            result[name] = Estimate(result[name])
    return [result]


def _totals(rows: Rows, by: list[str], window_us: int) -> Rows:
    found: Rows = []
    so_far: dict[tuple[Any, ...], tuple[float, int]] = {}
    for row in rows:
        key = (row["time"] // window_us, *(sort_key(row[name]) for name in by))
        total, count = so_far.get(key, (0.0, 0))
        so_far[key] = total if row["v"] is None else total + row["v"], count + 1
        found.append({**row, "v": so_far[key][0], "n": so_far[key][1]})
    return found


def _newest(rows: Rows, by: list[str], window_us: int) -> Rows:
    groups: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        groups.setdefault((row["time"] // window_us, *(sort_key(row[name]) for name in by)), []).append(row)
    found: Rows = []
    for key in sorted(groups):
        start = key[0] * window_us
        edges = {"time": start + window_us - 1, "window_start": start, "window_end": start + window_us}
        known = [row["k"] for row in groups[key] if row["k"] is not None]
        named = {name: comparable(groups[key][0][name]) for name in by}
        found.append({**edges, **named, "c": len(groups[key]), "k_last": known[-1] if known else None})
    return found


def _ranked(spec: Top, panes: list[Rows]) -> Rows:
    """The first k rows. Sorts by each term in turn, the last one first, because sorts are stable; NaN and nulls come last."""
    rows = [row for pane in panes for row in pane]
    for term in reversed(spec.order_by.split(",")):
        column, _, direction = term.strip().partition(" ")
        known = [row for row in rows if sort_key(row[column]) > _NAN]
        known.sort(key=lambda row: sort_key(row[column]), reverse=direction == "desc")
        strange = [row for row in rows if sort_key(row[column]) == _NAN]
        absent = [row for row in rows if row[column] is None]
        rows = known + strange + absent
    return [{**row, "rank": rank} for rank, row in enumerate(rows[: spec.k], 1)]


def _rows_of(batch: pa.RecordBatch) -> Rows:
    names = batch.schema.names
    columns = [plain(column) for column in batch.columns]
    return by_time([dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)])


def plain(column: pa.Array) -> list[Any]:
    """A column as Python values; timestamps as microseconds."""
    values: list[Any] = (column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
    return values


def shown(batch: pa.RecordBatch) -> list[str]:
    """Each row as text; equal rows have equal texts."""
    return list(map(repr, zip(*map(plain, batch.columns), strict=True)))


def difference(oracle: Oracle, key: str, batch: pa.RecordBatch | None) -> str | None:
    """The first row of a log that is not what it should be, or None. The bits of doubles count, except in an
    `ApproximateValue`."""
    due = oracle.rows[key]
    if (batch.num_rows if batch is not None else 0) != len(due):
        return f"{batch.num_rows if batch is not None else 0} rows instead of {len(due)}"
    if batch is None:
        return None
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        given, wanted = plain(column), [row[name] for row in due]
        if wanted and isinstance(wanted[0], ApproximateValue):
            wrong = [not other.is_near(one) for one, other in zip(given, wanted, strict=True)]
        elif repr(given) == repr(wanted):
            continue
        else:
            wrong = [repr(one) != repr(other) for one, other in zip(given, wanted, strict=True)]
        if True in wrong:
            row = wrong.index(True)
            return f"row {row}, {name}: {given[row]!r} instead of {getattr(wanted[row], 'value', wanted[row])!r}"
    return None
