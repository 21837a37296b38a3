"""The functions that Spark's Python workers run to recompute results: `cut` on the sources' logs, then `compute`, once for each
shard of each fragment. Logs are passed between them as rows, one for each frame, which Spark brings to the shard that reads
them, in the order of event time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import pyarrow as pa

from boreal.model import codec
from boreal.model.errors import CorruptError
from boreal.model.frames import Boundary, Frame, LogId
from boreal.query.spec import load_query
from deployment.layout import Layout, make_layout
from deployment.recompute import FragmentSpans, LogSlice, ShardRecomputation
from sunion.tape import BEGINNING

RECORDS = ("topic", "partition", "offset", "value")
"""The columns that `cut` takes, as Kafka's connector names them."""

FRAMES = "stream string, partition int, at long, place long, value binary"
"""The schema of logs as rows. at: the log's stable boundary at this frame, a lower bound for the times of all later rows;
place: the frame's place in its log."""

ORDER = ("at", "stream", "partition", "place")
"""The order in which `compute` takes the rows: no log runs far ahead of the others, and each is in its own order."""

PIECE_BYTES = 4 << 20
"""About how large the pieces are in which rows are returned to Spark."""

_SCHEMA = pa.schema(
    [("stream", pa.string()), ("partition", pa.int32()), ("at", pa.int64()), ("place", pa.int64()), ("value", pa.binary())]
)

Batches = Iterator[pa.RecordBatch]
_Row = tuple[str, int, int, int, bytes]


@dataclass(frozen=True, slots=True)
class BatchTask:
    """The query and the range to compute. Times are event times in microseconds since the epoch."""

    spec: str
    """The query as JSON."""
    sites: tuple[str, ...]
    """The names of the sites, the home site first."""
    since: int
    """The first time of the results."""
    until: int
    """The time after the last of the rows that they are computed from."""
    sources: tuple[tuple[str, str], ...] = ()
    """For each stream, what names the source whose logs are read; the query, if it is not there."""


@cache
def _layout(task: BatchTask) -> Layout:
    return replace(make_layout(load_query(json.loads(task.spec)), task.sites), shared=dict(task.sources))


def cut(task: BatchTask, batches: Batches) -> Batches:
    """For `DataFrame.mapInArrow`. Takes RECORDS of sources' logs, each log in order; returns the needed frames, as FRAMES."""
    layout = _layout(task)
    needs = FragmentSpans(layout.plan).needs(task.since)
    streams = {layout.topic_of(LogId(edge.name, "", 0)): edge.name for edge in layout.plan.sources}
    cuts: dict[tuple[str, int], LogSlice] = {}

    def rows() -> Iterator[_Row]:
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in RECORDS)
            for topic, partition, offset, value in zip(*columns, strict=True):
                stream = streams[topic]
                own = cuts.setdefault((topic, partition), LogSlice(needs[stream], task.until))
                frame = own.take(_decoded(value, f"{topic}, partition {partition}, offset {offset}"))
                if frame is not None:
                    yield stream, partition, own.reached, offset, codec.encode(frame)

    return _in_pieces(rows())


def compute(task: BatchTask, fragment: str, batches: Batches) -> Batches:
    """For `DataFrame.mapInArrow`. Takes the FRAMES that one shard of a fragment reads, in ORDER; returns those that it
    writes."""
    plan = _layout(task).plan
    span = FragmentSpans(plan).since(task.since)[fragment]

    def rows() -> Iterator[_Row]:
        instance: ShardRecomputation | None = None
        reached: dict[LogId, int] = {}
        place = 0
        for batch in batches:
            for stream, partition, value in zip(
                *(batch.column(name).to_pylist() for name in ("stream", "partition", "value")), strict=True
            ):
                instance = instance or ShardRecomputation(plan, fragment, partition % plan.fragment(fragment).shards, span)
                instance.take(f"{stream}/{partition}", codec.decode(value))
            for made in instance.advance() if instance else ():
                log, frame = made.log, made.frame
                if isinstance(frame, Boundary):
                    reached[log] = frame.time
                yield log.stream, log.partition, reached.get(log, BEGINNING), place, codec.encode(frame)
                place += 1

    return _in_pieces(rows())


def _decoded(value: bytes, where: str) -> Frame:
    try:
        return codec.decode(value)
    except CorruptError as error:
        raise CorruptError(f"{where}: {error}") from error


def _in_pieces(rows: Iterator[_Row]) -> Batches:
    piece: list[_Row] = []
    size = 0
    for row in rows:
        piece.append(row)
        size += len(row[-1])
        if size >= PIECE_BYTES:
            yield _batch(piece)
            piece, size = [], 0
    if piece:
        yield _batch(piece)


def _batch(rows: list[_Row]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
