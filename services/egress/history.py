"""The rows that the logs of a query's sources still hold, and those that clients were given: the basis for recomputing
results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import zip_longest

from kafka import TopicPartition

from boreal.model.codec import DataHead
from boreal.model.durations import format_duration
from boreal.model.errors import UserError
from boreal.model.frames import INFINITY, Boundary, LogId
from boreal.query.spec import Query
from deployment.layout import Layout
from deployment.query_record import public_name
from deployment.recompute import FragmentSpans, covering
from formats.client_headers import ID
from formats.json_text import moment, time_us
from logs.log import TrimmedError
from services.egress.tail import read_out_tail
from services.kafka.clusters import Cluster
from services.kafka.topics import out_topic, stable_topic
from services.storage.history_logs import HistoryLogs, first_boundary, heads
from services.storage.log_partition import LOOK_BEHIND, LogPartition, windows
from sunion.buckets import bucket_floor
from sunion.tape import BEGINNING

CAUGHT_UP_WITHIN_S = 10.0
"""How long q.stable may take to get a row that q.out has."""

TRIES = 5
"""So often the logs are looked at again that were trimmed meanwhile."""


@dataclass(frozen=True)
class SourceExtent:
    """What the logs of all sources hold. Times are event times in microseconds since the epoch."""

    offsets: Mapping[str, Mapping[int, tuple[int, int]]]
    """The first offset and the one after the last, by topic and partition."""
    reach: Mapping[str, int]
    """The time from which on no row is deleted, by the name of a source's edge."""
    complete: int
    """The time, a bucket's start, up to which all rows have arrived."""


def read_source_extent(clusters: Mapping[str, Cluster], layout: Layout) -> SourceExtent:
    """The extent now. KafkaError if a site does not answer."""
    offsets: dict[str, dict[int, tuple[int, int]]] = {}
    reach: dict[str, int] = {}
    complete = INFINITY
    with HistoryLogs(clusters, layout) as logs:
        for edge in layout.plan.sources:
            reach[edge.name] = BEGINNING
            for log in (LogId(edge.name, "", partition) for partition in range(edge.partitions)):
                partition = logs.open(log)
                start, end = partition.bounds()
                offsets.setdefault(layout.topic_of(log), {})[log.partition] = start, end
                complete = min(complete, bucket_floor(_last_boundary(partition, start, end), layout.plan.bucket_us))
                first_id = _first_id(partition, start, end)
                if first_id > 0:
                    reach[edge.name] = max(reach[edge.name], logs.reach(log.key, first_id))
    return SourceExtent(offsets, reach, max(complete, BEGINNING))


def narrow_extent(clusters: Mapping[str, Cluster], layout: Layout, held: SourceExtent, wanted: ResultRange) -> SourceExtent:
    """The extent with only the offsets that a range needs: a range of an hour does not read a history of weeks.

    KafkaError as `read_source_extent`.
    """
    until = covering(wanted.until, layout.plan.bucket_us)
    needs = FragmentSpans(layout.plan).needs(wanted.since)
    offsets: dict[str, dict[int, tuple[int, int]]] = {}
    with HistoryLogs(clusters, layout) as logs:
        for edge in layout.plan.sources:
            for log in (LogId(edge.name, "", partition) for partition in range(edge.partitions)):
                topic = layout.topic_of(log)
                start, end = held.offsets[topic][log.partition]
                partition = logs.open(log)
                if start < end:
                    end = min(first_boundary(partition, start, end, until) + 1, end)
                    first_id, next_id = logs.place_of(log.key, needs[edge.name]), partition.one(end - 1).next_id
                    with suppress(TrimmedError):  # the place is before the log's start
                        first = min(partition.offset_after(first_id - 1, start, end, next_id), end)
                        # A START shortly before shows which frames are a zombie's (R25).
                        start = max(first - LOOK_BEHIND, start)
                offsets.setdefault(topic, {})[log.partition] = start, end
    return replace(held, offsets=offsets)


def find_range(
    clusters: Mapping[str, Cluster], layout: Layout, choose: Callable[[SourceExtent], ResultRange]
) -> tuple[SourceExtent, ResultRange]:
    """The range that `choose` picks of what the logs hold, and their extent narrowed to it.

    The logs of a query that runs are trimmed meanwhile; then all is looked at again. TrimmedError if that happens TRIES times.
    """
    for left in reversed(range(TRIES)):
        try:
            held = read_source_extent(clusters, layout)
            wanted = choose(held)
            return narrow_extent(clusters, layout, held, wanted), wanted
        except TrimmedError:
            if not left:
                raise
    raise AssertionError


def _first_id(partition: LogPartition, start: int, end: int) -> int:
    """The first stable id that a log holds, or will hold next."""
    if start == end:
        return INFINITY if end else 0
    record = partition.one(start)
    head = partition.head(record)
    return head.first_id if isinstance(head, DataHead) else record.next_id


def _last_boundary(partition: LogPartition, start: int, end: int) -> int:
    """The event time up to which a source's log is complete."""
    for first in windows(start, end):
        incarnation, boundary = 0, BEGINNING
        for head in heads(partition, first, end):
            if head.origin.incarnation >= incarnation:  # else a zombie wrote it (R25)
                incarnation = head.origin.incarnation
                if isinstance(head, Boundary):
                    boundary = max(boundary, head.time)
        if boundary > BEGINNING:
            return boundary
    return BEGINNING


# The range of results that can be recomputed


@dataclass(frozen=True, slots=True)
class ResultRange:
    """Results with since <= event time < until."""

    since: int
    """Microseconds since the epoch; BEGINNING: no lower bound."""
    until: int
    """Microseconds since the epoch; INFINITY: no upper bound."""

    def holds(self, time: int) -> bool:
        return self.since <= time < self.until

    def shape(self) -> dict[str, str | None]:
        """As JSON; None for a missing bound."""
        return {
            "from": moment(self.since) if self.since > BEGINNING else None,
            "to": moment(self.until) if self.until < INFINITY else None,
        }

    def __str__(self) -> str:
        first = moment(self.since) if self.since > BEGINNING else "the beginning"
        return f"from {first} to {moment(self.until) if self.until < INFINITY else 'the end'}"


def resolve_range(
    query: Query, layout: Layout, held: SourceExtent, since: int | None, until: int | None, stable_to: int
) -> ResultRange:
    """The requested range (None: as far as possible), if all of its results can be computed from the logs and are final.
    stable_to: the time up to which results are final. UserError for the option that asks for more."""
    earliest = FragmentSpans(layout.plan).earliest(held.reach)
    if stable_to <= BEGINNING:
        raise UserError("NAME", query.name, "has no stable results yet", "feed it, and check what it waits for: boreal status")
    if earliest is None:
        problem = "depends on rows that its logs no longer hold"
        raise UserError("NAME", query.name, problem, "apply it under another name with tuning: {history: 7d}, and feed it")
    if since is not None and since < earliest:
        kept = format_duration(query.tuning.history)
        problem = f"is too early: the logs hold all rows that results need only from {moment(earliest)} on"
        fix = f"write --from {moment(earliest)} or later; tuning.history, now {kept}, says how long logs are kept"
        raise UserError("--from", moment(since), problem, fix)
    if until is not None and until > stable_to:
        problem = f"is after {moment(stable_to)}, up to which results are final"
        raise UserError("--to", moment(until), problem, f"write --to {moment(stable_to)} or earlier, or leave it out")
    found = ResultRange(earliest if since is None else since, stable_to if until is None else until)
    if found.since >= found.until:
        problem = f"leaves nothing {found}"
        raise UserError("--from", moment(found.since), problem, f"write a time before {moment(found.until)}")
    return found


# The rows that clients were given


@dataclass(frozen=True, slots=True)
class DeliveredRow:
    """A row of q.stable."""

    id: int
    """Its stable id."""
    time: int
    """Its event time, in microseconds since the epoch."""
    text: str
    """One line of JSON, as `formats.json_text` writes it."""


def stable_extent(home: Cluster, layout: Layout) -> tuple[int, int]:
    """(the event time up to which q.out holds all stable results, the id of the next one). KafkaError if Kafka does not
    answer."""
    tail = read_out_tail(home, out_topic(public_name(layout.plan.query), layout.home, layout.sites), None)
    if tail.place is None or tail.place.through is None:
        return BEGINNING, 0
    return bucket_floor(tail.place.through, layout.plan.bucket_us), tail.place.next_stable_id


def read_delivered_rows(home: Cluster, layout: Layout, next_id: int) -> Iterator[DeliveredRow]:
    """The rows before an id that q.stable holds, in order. UserError if it does not reach that id in time."""
    topic = stable_topic(public_name(layout.plan.query))
    partition = TopicPartition(topic, 0)
    with closing(home.make_consumer(read_committed=True)) as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        last, deadline = -1, time.monotonic() + CAUGHT_UP_WITHIN_S
        while last + 1 < next_id:
            for record in consumer.poll(timeout_ms=200).get(partition, ()):
                last, deadline = int(dict(record.headers)[ID]), time.monotonic() + CAUGHT_UP_WITHIN_S
                if last < next_id:
                    yield _delivered_row(last, record.value.decode())
            if time.monotonic() > deadline:
                problem = f"holds only the stable rows before {last + 1}, but {next_id} were given"
                raise UserError(topic, None, problem, "check that the egress of the home site runs: boreal status")


def delivered_since(home: Cluster, layout: Layout, next_id: int) -> int:
    """The event time from which on q.stable holds all rows that were given: Kafka deletes the oldest by age."""
    first = next(read_delivered_rows(home, layout, next_id), None)
    # Other rows of the first row's time may be deleted.
    return BEGINNING if first is None or first.id == 0 else first.time + 1


def _delivered_row(id_: int, text: str) -> DeliveredRow:
    row = json.loads(text)
    # The time of a window's result is the last microsecond before its end (R6).
    return DeliveredRow(id_, time_us(row["window_end"]) - 1 if "window_end" in row else time_us(row["time"]), text)


@dataclass(frozen=True, slots=True)
class RowDifference:
    """The first row that is not the same on both sides."""

    row: int
    """Its number in the range, from 1."""
    id: int | None
    """Its id in q.stable; None if q.stable has fewer rows."""
    given: str | None
    """The row of q.stable as JSON; None if it has fewer rows."""
    recomputed: str | None
    """The recomputed row as JSON; None if there are fewer."""


@dataclass(frozen=True, slots=True)
class HistoryComparison:
    """The result of comparing the rows that clients were given with recomputed ones."""

    given: int
    """How many rows q.stable has in the range."""
    recomputed: int
    """How many rows were computed."""
    first_difference: RowDifference | None
    """None if all rows are the same."""

    @property
    def same(self) -> bool:
        return self.first_difference is None


def compare(given: Iterable[DeliveredRow], recomputed: Iterable[str]) -> HistoryComparison:
    """Compare the rows in order, by their texts."""
    counts = [0, 0]
    first: RowDifference | None = None
    for number, (row, text) in enumerate(zip_longest(given, recomputed), start=1):
        counts[0] += row is not None
        counts[1] += text is not None
        if first is None and (row.text if row else None) != text:
            first = RowDifference(number, row.id if row else None, row.text if row else None, text)
    return HistoryComparison(counts[0], counts[1], first)
