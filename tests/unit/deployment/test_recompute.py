"""What is computed anew from sources' logs is what clients were given, from any time on and up to any other."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest

from boreal.model import codec
from boreal.model.errors import CorruptError
from boreal.model.frames import INFINITY, Anchor, Boundary, Data, Frame, LogId, Origin, Start
from boreal.query.plan import EGRESS, Fragment
from boreal.query.planner import plan
from boreal.query.spec import load_query
from deployment.layout import make_layout
from deployment.recompute import FragmentSpans, LogSlice, covering, within
from deployment.shared_sources import first_rows, newest
from embedded.generate import START_US
from formats.json_text import column_texts, joined, lines, object_parts, time_us
from spark_jobs.batch_worker import ORDER, RECORDS, BatchTask, compute, cut
from sunion.tape import BEGINNING
from tests.harness import Ran, S, batch_of, query_of, run
from tests.thoroughness import every, some

PER_KEY = {"aggregate": "all", "window": {"tumbling": "1s"}, "by": ["k"], "compute": {"n": "count(*)", "total": "sum(v)"}}
SLIDING = {"aggregate": "all", "window": {"sliding": "3s", "every": "1s"}, "by": ["k"], "compute": {"mean": "avg(v)"}}
ALL = {"union": ["a", "b", "c"]}

QUERIES: dict[str, dict[str, Any]] = {
    "a union": query_of(),
    "windows": query_of({"all": ALL, "out": PER_KEY}, "out"),
    "three shards": query_of({"all": ALL, "out": SLIDING}, "out", shards=3),
    "a join": query_of({"out": {"join": ["a", "b"], "on": ["k"], "within": "500ms", "how": "left"}}, "out", shards=2),
    "two fragments, sharded otherwise": query_of(
        {
            "all": ALL,
            "late": {"filter": "all", "where": "v > 0.3"},
            "per_key": {**PER_KEY, "aggregate": "late"},
            "worst": {"top": "per_key", "k": 8, "order_by": "total desc", "window": {"tumbling": "2s"}},
        },
        "worst",
        fragments={"f": {"operators": ["all", "late", "per_key"], "shards": 2}, "g": {"operators": ["worst"], "shards": 1}},
    ),
    "two readers of one fragment": query_of(
        {
            "all": ALL,
            "some": {"filter": "all", "where": "v > 0.5"},
            "first": {"distinct": "some", "on": ["k"], "window": {"tumbling": "2s"}},
            "sums": {**PER_KEY, "aggregate": "some"},
            "out": {"join": ["first", "sums"], "on": ["k"], "within": "2s"},
        },
        "out",
        fragments={
            "f": {"operators": ["all", "some"]},
            "g": {"operators": ["first"], "shards": 2},
            "h": {"operators": ["sums"]},
            "i": {"operators": ["out"]},
        },
    ),
}


def recomputed(
    ran: Ran,
    since: int,
    until: int = INFINITY,
    logs: Mapping[str, list[Frame]] | None = None,
    sources: Mapping[str, str] = MappingProxyType({}),
) -> list[Any]:
    """As the job does it, but for Spark: each source's log is cut, and each shard of each fragment has its frames in order.
    sources: by stream, what names them, if not the query."""
    layout = replace(make_layout(ran.query, ("a",)), shared=sources)
    until_bucket = covering(until, layout.plan.bucket_us)
    task = BatchTask(json.dumps(ran.query.dump()), ("a",), since, until_bucket, tuple(sources.items()))
    frames: list[dict[str, Any]] = []
    for edge in layout.plan.sources:
        for partition in range(edge.partitions):
            log = LogId(edge.name, "", partition)
            held = logs[log.key] if logs else [entry.frame for entry in ran.history(edge.name, "", partition)]
            columns = [layout.topic_of(log)] * len(held), [partition] * len(held), list(range(len(held)))
            arrays = [pa.array(column) for column in (*columns, [codec.encode(frame) for frame in held])]
            frames += rows_of(cut(task, iter([pa.RecordBatch.from_arrays(arrays, names=list(RECORDS))])))
    for fragment in layout.plan.fragments:
        read = {edge.name for edge in fragment.edges}
        made = []
        for shard in range(fragment.shards):
            own = [row for row in frames if row["stream"] in read and row["partition"] % fragment.shards == shard]
            own.sort(key=lambda row: [row[name] for name in ORDER])
            batches = (pa.RecordBatch.from_pylist(own[at : at + 50]) for at in range(0, len(own), 50))
            made += rows_of(compute(task, fragment.name, batches))
        frames += made
    schema = layout.plan.output.schema
    found = [codec.decode(row["value"]) for row in made]
    texts = [
        lines(joined(object_parts(column_texts(schema, within(frame.batch, since, until)))))
        for frame in found
        if isinstance(frame, Data)
    ]
    assert max(frame.time for frame in found if isinstance(frame, Boundary)) >= task.until
    return [json.loads(line) for line in "".join(texts).splitlines()]


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def given(ran: Ran, since: int, until: int) -> list[Any]:
    def time(row: dict[str, Any]) -> int:
        return time_us(row["window_end"]) - 1 if "window_end" in row else time_us(row["time"])

    return [row for row in ran.stable if since <= time(row) < until]


@pytest.fixture(scope="module")
def ran() -> Callable[[str], Ran]:
    """A run of each query in which an input is cut off and a replica crashes."""
    return cache(lambda name: run(QUERIES[name], "cut a at 2s for 2s", f"crash {_first_fragment(name)}.r0 at 5s for 1s"))


def _first_fragment(name: str) -> str:
    return plan(load_query(QUERIES[name])).fragments[0].name


@pytest.mark.parametrize("name", every(3, QUERIES))
def test_any_range_is_what_clients_were_given(ran: Callable[[str], Ran], name: str):
    faulted = ran(name)
    assert faulted.n_tentative > 0
    assert len(faulted.stable) > 20
    assert recomputed(faulted, BEGINNING) == faulted.stable
    chance = random.Random(name)
    for first in [3 * S, *(chance.randrange(8 * S) for _ in range(some(10)))]:
        since = START_US + first
        until = chance.choice([INFINITY, since + chance.randrange(1, 4 * S), since + S])
        assert recomputed(faulted, since, until) == given(faulted, since, until), (since, until)
    assert 0 < len(given(faulted, START_US + 3 * S, START_US + 6 * S)) < len(faulted.stable)


@pytest.mark.parametrize("name", every(3, QUERIES))
def test_the_earliest_time_is_the_first_for_which_no_row_is_lacking(ran: Callable[[str], Ran], name: str):
    faulted = ran(name)
    spans = FragmentSpans(faulted.plan)
    chance = random.Random(name)
    for _ in range(some(5)):
        reach = {edge.name: START_US + chance.randrange(5 * S) for edge in faulted.plan.sources}
        earliest = spans.earliest(reach)
        assert earliest is not None
        assert earliest % faulted.plan.bucket_us == 0
        logs: dict[str, list[Frame]] = {
            f"{edge.name}/{partition}": [
                left
                for entry in faulted.history(edge.name, "", partition)
                if (left := own.take(entry.frame)) is not None
            ]
            for edge in faulted.plan.sources
            for partition in range(edge.partitions)
            for own in [LogSlice(reach[edge.name], INFINITY)]
        }
        assert recomputed(faulted, earliest, INFINITY, logs) == given(faulted, earliest, INFINITY)
        before = spans.needs(earliest - faulted.plan.bucket_us)
        assert any(before[name] < reached for name, reached in reach.items()), "an earlier time would have done"


@pytest.mark.parametrize("name", every(3, QUERIES))
def test_what_the_last_anchors_need_is_all_that_later_results_depend_on(ran: Callable[[str], Ran], name: str):
    """So a version that reads the logs from there on gives them (`deployment.shared_sources`)."""
    faulted = ran(name)
    chance = random.Random(name)
    for at_us in (chance.randrange(3 * S, 8 * S),):
        anchors = {
            (fragment.name, shard): newest([_last_anchor(faulted, fragment, r, shard, at_us) for r in fragment.replicas])
            for fragment in faulted.plan.fragments
            if fragment.name != EGRESS
            for shard in range(fragment.shards)
        }
        first_ids, reach = first_rows(faulted.plan, anchors)
        earliest = FragmentSpans(faulted.plan).earliest(reach)
        assert earliest is not None
        if len(faulted.plan.fragments) == 2:
            assert START_US < earliest < START_US + at_us, "one more fragment may need older rows"
        assert min(first_ids.values()) > 0, "not all rows are needed"
        logs: dict[str, list[Frame]] = {
            f"{edge.name}/{partition}": [
                left
                for entry in faulted.history(edge.name, "", partition)
                if (left := _from(entry.frame, first_ids[f"{edge.name}/{partition}"])) is not None
            ]
            for edge in faulted.plan.sources
            for partition in range(edge.partitions)
        }
        assert recomputed(faulted, earliest, INFINITY, logs) == given(faulted, earliest, INFINITY)


def _last_anchor(ran: Ran, fragment: Fragment, replica: str, shard: int, at_us: int) -> Anchor | None:
    """The last one that an instance had written by a time of event time (us since the start)."""
    edge = fragment.outputs[0]
    frames = [entry.frame for entry in ran.history(edge.name, replica, edge.partition(shard, 0))]
    anchors = [frame.anchor for frame in frames if isinstance(frame, Boundary) and frame.anchor is not None]
    return max((each for each in anchors if each.time <= START_US + at_us), key=lambda each: each.time, default=None)


def _from(frame: Frame, first_id: int) -> Frame | None:
    """A frame without rows before an id; None if there are no others."""
    if not isinstance(frame, Data) or frame.first_id >= first_id:
        return frame
    left = first_id - frame.first_id
    if left >= frame.batch.num_rows:
        return None
    return replace(frame, first_id=first_id, batch=frame.batch.slice(left))


def test_the_logs_of_a_version_are_found_by_what_names_its_sources(ran: Callable[[str], Ran]):
    faulted = ran("windows")
    assert recomputed(faulted, BEGINNING, sources=dict.fromkeys(faulted.query.streams, "q-2")) == faulted.stable


def test_what_is_all_there_can_be_computed_from_the_beginning():
    spans = FragmentSpans(plan(load_query(QUERIES["windows"])))
    assert spans.earliest(dict.fromkeys("abc", BEGINNING)) == BEGINNING
    assert spans.earliest({"a": BEGINNING, "b": 7 * S, "c": BEGINNING}) == 7 * S
    assert spans.earliest({"a": BEGINNING, "b": INFINITY, "c": BEGINNING}) is None


def test_a_state_that_forgets_nothing_needs_every_row():
    spans = FragmentSpans(plan(load_query(query_of({"all": ALL, "out": {"distinct": "all", "on": ["k"]}}, "out"))))
    assert spans.needs(5 * S) == dict.fromkeys("abc", BEGINNING)
    assert spans.earliest(dict.fromkeys("abc", BEGINNING)) == BEGINNING
    assert spans.earliest({"a": S, "b": BEGINNING, "c": BEGINNING}) is None


# What is left of a source's log

OLD, NEW = Origin("", 1), Origin("", 2)


def rows(first_id: int, *times: int, origin: Origin = OLD) -> Data:
    return Data(origin, 0, first_id, batch_of(times, range(first_id, first_id + len(times))), False, ((INFINITY, 0),), 0)


def boundary(time: int, origin: Origin = OLD) -> Boundary:
    return Boundary(origin, 0, time, False, 0, 0)


def left_of(own: LogSlice, *frames: Frame) -> list[Any]:
    """(first id, [(time, v), ...]) of rows, the time of a boundary."""
    found: list[Any] = []
    for frame in frames:
        left = own.take(frame)
        if isinstance(left, Data):
            found.append((left.first_id, [tuple(row.values()) for row in left.batch.to_pylist()]))
        elif left is not None:
            found.append(left.time)
    return found


def test_a_cut_keeps_the_rows_of_a_time_and_boundaries_that_rise():
    frames = [rows(5, 1, 4), boundary(3), boundary(3), rows(7, 12, 9), rows(9, 3, 10), boundary(9), boundary(30), rows(11, 31)]
    assert left_of(LogSlice(4, 12), *frames) == [(0, [(4, 6)]), 3, (1, [(9, 8)]), (2, [(10, 10)]), 9, 12]


def test_a_cut_takes_each_row_once_whatever_lives_its_source_had():
    frames = [Start(OLD, 0), rows(0, 1, 2), Start(NEW, 0, 2), rows(2, 99), rows(1, 2, 3, origin=NEW), rows(3, 4, origin=NEW)]
    assert left_of(LogSlice(BEGINNING, INFINITY), *frames) == [(0, [(1, 0), (2, 1)]), (2, [(3, 2)]), (3, [(4, 3)])]


def test_a_cut_refuses_a_log_that_lacks_rows():
    with pytest.raises(CorruptError, match=r"rows 2 to 4 .* missing"):
        left_of(LogSlice(BEGINNING, INFINITY), rows(0, 1, 2), rows(5, 9))
