"""A query's stable results computed anew from what its sources logged, from any time on. Pure: frames in, frames out.

The same objects as ever do the work: SUnion puts the rows in order, the host runs the operators, SOutput numbers what comes
of them and splits it over its readers' partitions. Nothing fails here, so no step is tentative.

Who computes from a time on begins where the state at that time begins (R20), and throws the output before it away, as an
instance does that begins a new life (R26). A fragment that reads another has that one begin early enough for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from boreal.model.errors import CorruptError
from boreal.model.frames import INFINITY, Anchor, Boundary, Data, Frame, Origin, Start, State
from boreal.query.plan import Plan
from boreal.query.spec import Hold, Policy
from operators.graph import Graph
from reconcile.events import Append, InstanceId
from reconcile.host import Host
from reconcile.links import links_of, merges_of
from reconcile.soutput import SOutput
from sunion.buckets import bucket_end, bucket_floor
from sunion.steps import Step
from sunion.sunion import Settings, SUnion
from sunion.tape import BEGINNING

REPLICA = "r0"
"""In whose name results are computed; all replicas' are the same."""


@dataclass(frozen=True, slots=True)
class Span:
    """What a fragment computes. position: input rows from here on are processed; exact_from: the output of before is thrown
    away, since what it rests on may lie before `position`."""

    position: int
    exact_from: int


@dataclass(frozen=True)
class Spans:
    """What each fragment of a plan must compute for results from a time on."""

    plan: Plan

    @cached_property
    def _graphs(self) -> dict[str, Graph]:
        return {fragment.name: Graph(fragment) for fragment in self.plan.fragments}

    def since(self, time: int) -> dict[str, Span]:
        """By fragment, for results from `time` on."""
        found: dict[str, Span] = {}
        for fragment in reversed(self.plan.fragments):
            made = {edge.name for edge in fragment.outputs}
            readers = [other for other in self.plan.fragments if made & {edge.name for edge in other.edges}]
            wanted = min((found[reader.name].position for reader in readers), default=time)
            exact_from = wanted if wanted <= BEGINNING else bucket_floor(wanted, self.plan.bucket_us)
            needs = self._graphs[fragment.name].needs(exact_from)
            found[fragment.name] = Span(max(min(needs, exact_from), BEGINNING), exact_from)
        return found

    def needs(self, time: int) -> dict[str, int]:
        """By the name of a source's edge, the event time from which results since `time` need its rows."""
        spans = self.since(time)
        return {
            edge.name: min(spans[f.name].position for f in self.plan.fragments if edge in f.edges) for edge in self.plan.sources
        }

    def earliest(self, reach: Mapping[str, int]) -> int | None:
        """The earliest time, a bucket's start, from which results can be computed of rows that are there from `reach` on, by
        the name of a source's edge; None where some state depends on rows that are gone, for ever."""
        first = max(reach.values())
        if first <= BEGINNING:
            return BEGINNING
        if first >= INFINITY:
            return None

        def is_enough(time: int) -> bool:
            return all(needed >= reach[name] for name, needed in self.needs(time).items())

        bucket = self.plan.bucket_us
        low = bucket_end(first, bucket) - bucket
        step = bucket
        while not is_enough(low + step):
            step *= 2
            if low + step >= INFINITY:
                return None
        few, enough = 0, step // bucket
        if is_enough(low):
            return low
        while enough - few > 1:
            middle = (few + enough) // 2
            few, enough = (few, middle) if is_enough(low + middle * bucket) else (middle, enough)
        return low + enough * bucket


class Cut:
    """The frames of one source's log that matter for some time: each row in [since, until) once, with new ids from 0, and
    boundaries where they rise, up to `until`. Give it every frame of the log, in order, from any place on."""

    def __init__(self, since: int, until: int) -> None:
        self.since = since
        self.until = until
        self.reached = BEGINNING
        """The log's stable boundary: no frame that comes from here on has an older row."""
        self._incarnation = 0
        self._next_id: int | None = None
        self._kept = 0

    def take(self, frame: Frame) -> Data | Boundary | None:
        """What is left of a frame. CorruptError where rows are missing before it."""
        incarnation = frame.origin.incarnation
        if incarnation < self._incarnation:
            return None  # a zombie's (R25)
        self._incarnation = incarnation
        match frame:
            case Data(tentative=False):
                return self._take_rows(frame)
            case Boundary(tentative=False) if frame.time > self.reached:
                before, self.reached = self.reached, frame.time
                time = min(frame.time, self.until)
                return Boundary(frame.origin, 0, time, False, frame.ingest, frame.sent) if time > before else None
            case Boundary() | Start():
                return None
        raise CorruptError(f"a source's log holds {type(frame).__name__}, which no source writes")

    def _take_rows(self, frame: Data) -> Data | None:
        next_id = frame.first_id if self._next_id is None else self._next_id
        if frame.first_id > next_id:
            raise CorruptError(f"the rows {next_id} to {frame.first_id - 1} of a source's log are missing")
        self._next_id = max(next_id, frame.first_id + frame.batch.num_rows)
        rows = frame.batch.slice(next_id - frame.first_id)
        times = rows.column(0).to_numpy()
        within = (times >= self.since) & (times < self.until)
        if not within.any():
            return None
        if not within.all():
            rows = rows.take(pa.array(np.flatnonzero(within)))
        first_id = self._kept
        self._kept += rows.num_rows
        return Data(frame.origin, 0, first_id, rows, False, frame.ingest, frame.t_max)


class Recomputation:
    """One shard of a fragment. Give it the frames of the logs that it reads, each log in order, then take what it makes."""

    def __init__(self, plan: Plan, fragment: str, shard: int, span: Span) -> None:
        self._fragment = plan.fragment(fragment)
        me = InstanceId(fragment, REPLICA, shard)
        links = links_of(plan, self._fragment, me, plan.silence_us)
        self._ports = {link.port.key: link.port for link in links}
        settings = Settings(plan.bucket_us, 0, 0, memory_bytes=INFINITY)
        policy = Policy(failure=Hold.SUSPEND, stabilization=Hold.SUSPEND)
        merges = merges_of(self._fragment, links)
        self._sunion = SUnion([link.port for link in links], merges, settings, str(me), policy, 0)
        self._sunion.begin_at(span.position, span.exact_from)
        self._host = Host(Graph(self._fragment), plan.mode)
        self._soutput = SOutput(self._fragment.outputs, shard, Origin(REPLICA, 1), plan.bucket_us)

    def take(self, key: str, frame: Frame) -> None:
        """A frame of a log, 'stream/partition'."""
        port = self._ports[key]
        if isinstance(frame, Data):
            port.take_stable(frame, 0)
        elif isinstance(frame, Boundary):
            port.take_boundary(frame, 0)

    def advance(self) -> Iterator[Append]:
        """What follows from the frames so far: rows, and how far they reach."""
        while items := self._sunion.advance(0, overdue_counts=False):
            for step in items:
                assert isinstance(step, Step) and not step.tentative, "nothing is missing, so nothing is tentative"
                yield from self._soutput.emit(self._host.step(step), step, State.STABLE, 0, _nothing_to_restart)
            self._sunion.trim(self._sunion.base.position)


def _nothing_to_restart(next_ids: tuple[tuple[str, int], ...]) -> Anchor:
    return Anchor(BEGINNING, BEGINNING, next_ids, ())


def within(batch: pa.RecordBatch, since: int, until: int) -> pa.RecordBatch:
    """The rows of ordered results with since <= time < until."""
    first, last = np.searchsorted(batch.column(0).to_numpy(), (since, until))
    return batch.slice(first, last - first)


def covering(until: int, bucket_us: int) -> int:
    """Up to where all input must be known for the results before `until`: a bucket's end."""
    return bucket_end(until - 1, bucket_us) if BEGINNING < until < INFINITY else until
