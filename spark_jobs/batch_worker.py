"""What runs in Spark's Python workers when results are computed anew: `cut` on what a source logged, then `compute`, once
for each shard of each fragment. Logs travel between them as rows, a frame each, which Spark brings to the shard that reads
them, in the order of event time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pyarrow as pa

from boreal.model import codec
from boreal.model.errors import CorruptError
from boreal.model.frames import Boundary, Frame, LogId
from boreal.query.spec import load_query
from deployment.layout import Layout, make_layout
from deployment.recompute import FragmentSpans, LogSlice, Recomputation
from sunion.tape import BEGINNING

RECORDS = ("topic", "partition", "offset", "value")
"""The columns that `cut` takes, as Kafka's connector names them."""

FRAMES = "stream string, partition int, at long, place long, value binary"
"""Logs as rows, as Spark writes a schema. at: the log's stable boundary with this frame, than which no row from here on is
older; place: the frame's in its log."""

ORDER = ("at", "stream", "partition", "place")
"""In this order `compute` takes them: no log runs far ahead of the others, and each is in its own order."""

PIECE_BYTES = 4 << 20
"""Rows are handed to Spark in pieces of about so many bytes."""

_SCHEMA = pa.schema(
    [("stream", pa.string()), ("partition", pa.int32()), ("at", pa.int64()), ("place", pa.int64()), ("value", pa.binary())]
)

Batches = Iterator[pa.RecordBatch]
_Row = tuple[str, int, int, int, bytes]


@dataclass(frozen=True, slots=True)
class Task:
    """What is computed. spec: the query as JSON; since: of the results; until: of the rows that they are made of."""

    spec: str
    sites: tuple[str, ...]
    since: int
    until: int


@cache
def _layout(task: Task) -> Layout:
    return make_layout(load_query(json.loads(task.spec)), task.sites)


def cut(task: Task, batches: Batches) -> Batches:
    """For `DataFrame.mapInArrow`: RECORDS of sources' logs in, each log in order; what matters of them out, as FRAMES."""
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


def compute(task: Task, fragment: str, batches: Batches) -> Batches:
    """For `DataFrame.mapInArrow`: FRAMES of all that one shard of a fragment reads in, in ORDER; those that it makes out."""
    plan = _layout(task).plan
    span = FragmentSpans(plan).since(task.since)[fragment]

    def rows() -> Iterator[_Row]:
        instance: Recomputation | None = None
        reached: dict[LogId, int] = {}
        place = 0
        for batch in batches:
            for stream, partition, value in zip(
                *(batch.column(name).to_pylist() for name in ("stream", "partition", "value")), strict=True
            ):
                instance = instance or Recomputation(plan, fragment, partition % plan.fragment(fragment).shards, span)
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
