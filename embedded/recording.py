"""What the sources of a query have logged, read again, to replay it: rows and boundaries, each with the time at which it came.

Logs are read from their end, until there are the rows of the wanted span and, before it, those that the query's windows still
held when it began. `RecordedSources` then logs them in a run at the pace at which they came.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.ipc

from boreal.model.errors import UserError
from boreal.model.frames import INFINITY, Boundary, Data, Frame, LogId, Start
from boreal.query.own_operators import own_memory_us
from boreal.query.plan import Edge, Plan
from boreal.query.shapes import Aggregate, Deduplicate, Distinct, Join, Lookup, Python, Top
from boreal.query.spec import Query
from formats.json_text import moment
from sunion.buckets import bucket_floor

WARM_UP_US = 5_000_000
"""What comes before the span at least, so that a run has settled when the span begins."""

MOST_BYTES = 256 << 20
"""Of the rows of a recording, as Arrow holds them: it is made in memory."""

NewestFirst = Callable[[LogId], Iterator[Sequence[Frame]]]
"""The frames of a log of a source, in pieces: the newest piece first, each in its order."""

_FIELD = "failure"
_SAID = "recording.json"


class RowsGoneError(UserError):
    """Rows that are asked for are no longer kept."""


class TooManyRowsError(UserError):
    """There are more rows than may be taken."""


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time, as clock values: microseconds since the Unix epoch."""

    begin: int
    """When it begins."""
    end: int
    """When it is over."""


@dataclass(frozen=True, slots=True)
class RecordedStream:
    """What came of a stream, in the order in which it came. Times of arrival are microseconds from `Recording.begin` on."""

    batch: pa.RecordBatch
    """The rows, in the shape of `Schema.arrow`."""
    arrived: npt.NDArray[np.int64]
    """When each row came, ascending."""
    said: npt.NDArray[np.int64]
    """When each boundary came, ascending."""
    boundaries: npt.NDArray[np.int64]
    """The event times of the boundaries, ascending."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What came of all streams that reach the output."""

    begin: int
    """When it begins: a clock value, in microseconds since the Unix epoch."""
    length_us: int
    """How long it is, in microseconds."""
    streams: Mapping[str, RecordedStream]
    """By stream."""
    notes: tuple[str, ...] = ()
    """What a reader of the results must know."""

    @property
    def n_rows(self) -> int:
        return sum(stream.batch.num_rows for stream in self.streams.values())

    def save(self, folder: Path) -> None:
        """Write it to a folder, which is created; `read_recording` reads it."""
        folder.mkdir()
        said = {"begin": self.begin, "length_us": self.length_us, "streams": list(self.streams), "notes": self.notes}
        (folder / _SAID).write_text(json.dumps(said), encoding="utf-8")
        for number, stream in enumerate(self.streams.values()):
            with pa.ipc.new_file(folder / f"{number}.arrow", stream.batch.schema) as file:
                file.write_batch(stream.batch)
            times = {"arrived": stream.arrived, "said": stream.said, "boundaries": stream.boundaries}
            np.savez(folder / f"{number}.npz", **times)  # type: ignore[arg-type]


def read_recording(folder: Path) -> Recording:
    """What `Recording.save` wrote."""
    said = json.loads((folder / _SAID).read_text(encoding="utf-8"))
    streams = {}
    for number, name in enumerate(said["streams"]):
        with pa.ipc.open_file(folder / f"{number}.arrow") as file, np.load(folder / f"{number}.npz") as times:
            streams[name] = RecordedStream(file.get_batch(0), times["arrived"], times["said"], times["boundaries"])
    return Recording(said["begin"], said["length_us"], streams, tuple(said["notes"]))


def source_logs(plan: Plan) -> list[LogId]:
    """The logs of the sources that `record` reads."""
    return [LogId(edge.name, "", partition) for edge in _edges(plan).values() for partition in range(edge.partitions)]


def record(plan: Plan, query: Query, newest_first: NewestFirst, span: Span, most_rows: int) -> Recording:
    """What came within a span, and before it what the query's windows held. RowsGoneError if rows of the span are no longer
    kept; TooManyRowsError if it has more than `most_rows`, or than MOST_BYTES."""
    memory = memory_us(query)
    logs = source_logs(plan)
    # What comes before the span may not take the room of what is in it.
    most, most_before = _Size(most_rows, MOST_BYTES), _Size(most_rows // (2 * len(logs)), MOST_BYTES // (2 * len(logs)))
    parts: dict[LogId, _Part] = {}
    nbytes = 0
    for log in logs:
        parts[log] = _read_back(log, newest_first(log), span, memory, (most, most_before))
        nbytes += _size(parts[log].frames).nbytes
        if nbytes > MOST_BYTES:
            raise _too_many(_Size(0, nbytes), most)
    begin = max(part.begin for part in parts.values())
    streams = {
        name: _stream(edge, [parts[LogId(edge.name, "", each)].frames for each in range(edge.partitions)], begin, span.end)
        for name, edge in _edges(plan).items()
    }
    notes = () if not any(part.is_short for part in parts.values()) else (_short(begin),)
    made = Recording(begin, span.end - begin, streams, notes)
    if made.n_rows > most_rows:
        raise _too_many(_Size(made.n_rows, 0), most)
    return made


def exact_range(recording: Recording, query: Query, bucket_us: int, span: Span) -> tuple[int, int]:
    """The event times, from and to before, of the results that all streams have reached within a span, and that follow from its
    recording alone: no row that they depend on came before it. Empty if the first is not before the second. bucket_us: in event
    time."""
    streams = recording.streams.values()
    if not all(len(stream.said) for stream in streams):
        return INFINITY, 0
    # A row after a boundary has its time or a later one.
    whole = max(int(stream.boundaries[0]) for stream in streams) + memory_us(query)
    begun = [int(np.searchsorted(stream.said, span.begin - recording.begin, side="right")) for stream in streams]
    before = min(int(stream.boundaries[max(n - 1, 0)]) for stream, n in zip(streams, begun, strict=True))
    reached = min(int(stream.boundaries[-1]) for stream in streams)
    return min(max(whole, bucket_floor(before, bucket_us)), INFINITY), bucket_floor(reached, bucket_us)


def memory_us(query: Query) -> int:
    """How long, in microseconds of event time, a row can matter to later results at most; INFINITY if for ever."""
    if query.unbounded:
        return INFINITY
    total = 0
    for name in query.reaching:
        operator = query.operators[name]
        if isinstance(operator, (Join, Lookup, Deduplicate)):
            total += operator.within or 0
        elif isinstance(operator, (Aggregate, Distinct, Top)) and operator.window is not None:
            total += operator.window.size_us
        elif isinstance(operator, Python):
            total += own_memory_us(operator.operator, operator.parameters) or 0
    return total


def _edges(plan: Plan) -> dict[str, Edge]:
    """One edge of each stream: all have the same rows."""
    found: dict[str, Edge] = {}
    for edge in plan.sources:
        found.setdefault(edge.operator, edge)
    return found


@dataclass(frozen=True, slots=True)
class _Part:
    """What is taken of one log."""

    begin: int
    """From when on it can be replayed."""
    frames: Sequence[Data | Boundary]
    """In order."""
    is_short: bool = False
    """Whether it does not go back as far as windows do."""


@dataclass(frozen=True, slots=True)
class _Size:
    """How much some rows are."""

    rows: int
    """How many."""
    nbytes: int
    """As Arrow holds them."""

    def exceeds(self, most: _Size) -> bool:
        return self.rows > most.rows or self.nbytes > most.nbytes


def _size(frames: Sequence[Frame]) -> _Size:
    batches = [frame.batch for frame in frames if isinstance(frame, Data)]
    return _Size(sum(batch.num_rows for batch in batches), sum(batch.nbytes for batch in batches))


def _read_back(
    log: LogId, pieces: Iterator[Sequence[Frame]], span: Span, memory: int, limits: tuple[_Size, _Size]
) -> _Part:
    """Read a log from its end, until it has what windows held when the span began. limits: on the rows; and on the rows with
    which it still goes back beyond the span."""
    most, most_before = limits
    taken: list[Data | Boundary] = []
    floor: int | None = None
    oldest: int | None = None
    size, is_whole = _Size(0, 0), False
    for piece in pieces:
        is_whole = any(isinstance(frame, Start) and frame.origin.incarnation == 1 for frame in piece)
        known = [frame for frame in piece if isinstance(frame, (Data, Boundary))]
        oldest = _came(known[0]) if known else oldest
        came = [frame for frame in known if _came(frame) <= span.end]
        taken = came + taken
        said = [frame for frame in came if isinstance(frame, Boundary) and frame.sent <= span.begin]
        if floor is None and said:
            floor = said[-1].time - memory
        settled = [
            each.sent for each in said if floor is not None and each.time <= floor and each.sent <= span.begin - WARM_UP_US
        ]
        if settled:
            return _Part(settled[-1], taken)
        more = _size(came)
        size = _Size(size.rows + more.rows, size.nbytes + more.nbytes)
        if size.exceeds(most_before if oldest is not None and oldest <= span.begin else most):
            break
    if oldest is None or oldest > (span.end if is_whole else span.begin):
        raise _too_many(size, most) if size.exceeds(most) else _gone(log.stream, oldest, span)
    return _Part(min(oldest, span.begin), taken, is_short=not is_whole)


def _came(frame: Data | Boundary) -> int:
    return frame.sent if isinstance(frame, Boundary) else max(at for _, at in frame.ingest)


def _stream(edge: Edge, partitions: Sequence[Sequence[Data | Boundary]], begin: int, end: int) -> RecordedStream:
    """What came from `begin` on, of all partitions of a stream."""
    wanted = [frame for frames in partitions for frame in frames if begin <= _came(frame) <= end]
    data = sorted((frame for frame in wanted if isinstance(frame, Data)), key=_came)
    said = [frame for frame in partitions[0] if isinstance(frame, Boundary) and begin <= frame.sent <= end]
    table = pa.Table.from_batches([frame.batch for frame in data], schema=edge.schema.arrow).combine_chunks()
    batch = table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], schema=edge.schema.arrow)
    arrived = [np.full(frame.batch.num_rows, _came(frame) - begin, dtype=np.int64) for frame in data]
    return RecordedStream(
        batch,
        np.concatenate([np.empty(0, dtype=np.int64), *arrived]),
        np.array([frame.sent - begin for frame in said], dtype=np.int64),
        np.array([frame.time for frame in said], dtype=np.int64),
    )


def _gone(stream: str, oldest: int | None, span: Span) -> RowsGoneError:
    left = "none is left" if oldest is None else f"the oldest that is kept came at {moment(oldest)}"
    problem = f"rows of {stream} from {moment(span.begin)} on are no longer kept: {left}"
    fix = "replay a newer one: the newest rows are kept, on a stack for as long as tuning.history of the query says"
    return RowsGoneError(_FIELD, None, problem, fix)


def _too_many(size: _Size, most: _Size) -> TooManyRowsError:
    if size.rows > most.rows:
        found, limit = f"{size.rows:,} rows", f"{most.rows:,}"
    else:
        found, limit = f"{size.nbytes >> 20:,} MB of rows", f"{MOST_BYTES >> 20:,} MB over all streams"
    problem = f"has at least {found}, more than a replay may have"
    return TooManyRowsError(_FIELD, None, problem, f"replay one with at most {limit}, or use boreal compare with files")


def _short(begin: int) -> str:
    return f"windows that began before {moment(begin)} lack rows: those are no longer kept, or would be too many"
