"""Recomputes a query's stable results from its sources' logs, from any time on. Pure: frames in, frames out.

It uses the same objects as a running query: SUnion orders the rows, the host runs the operators, SOutput numbers the results
and splits them over the readers' partitions. Nothing fails here, so no step is tentative.

A fragment that computes results from a time on begins where the state at that time begins (R20), and drops its output before
that time, like an instance after a restart (R26). A fragment's inputs begin early enough for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa

from boreal.model.columns import event_times
from boreal.model.errors import CorruptError
from boreal.model.frames import INFINITY, Anchor, Boundary, Data, Frame, Origin, Start, State
from boreal.query.plan import Plan
from boreal.query.spec import Hold, Policy
from operators.graph import FragmentGraph
from reconcile.events import Append, InstanceId
from reconcile.host import Host
from reconcile.links import links_of, merges_of
from reconcile.soutput import SOutput
from sunion.buckets import bucket_end, bucket_floor
from sunion.steps import Step
from sunion.sunion import Settings, SUnion
from sunion.tape import BEGINNING

REPLICA = "r0"
"""The replica in the origin of the results; all replicas give the same results."""


@dataclass(frozen=True, slots=True)
class FragmentSpan:
    """The range that a fragment computes, as event time (us)."""

    position: int
    """Input rows from this time on are processed."""
    exact_from: int
    """Output before this time is dropped, since it may depend on input before `position`."""


@dataclass(frozen=True)
class FragmentSpans:
    """The ranges that the fragments of a plan must compute for results from a time on."""

    plan: Plan
    """The query's plan."""
    states: Mapping[str, int] = field(default_factory=dict)
    """The fragments that begin with a state, by name, each with the event time of its state: of its latest shard."""

    @cached_property
    def _graphs(self) -> dict[str, FragmentGraph]:
        return {fragment.name: FragmentGraph(fragment) for fragment in self.plan.fragments}

    def since(self, time: int) -> dict[str, FragmentSpan]:
        """The range of each fragment, for results from `time` on."""
        found: dict[str, FragmentSpan] = {}
        for fragment in reversed(self.plan.fragments):
            made = {edge.name for edge in fragment.outputs}
            readers = [other for other in self.plan.fragments if made & {edge.name for edge in other.edges}]
            wanted = min((found[reader.name].position for reader in readers), default=time)
            exact_from = wanted if wanted <= BEGINNING else bucket_floor(wanted, self.plan.bucket_us)
            if fragment.name in self.states:
                position = self.states[fragment.name]
            else:
                position = max(min(self._graphs[fragment.name].needs(exact_from), exact_from), BEGINNING)
            found[fragment.name] = FragmentSpan(position, exact_from)
        return found

    def needs(self, time: int) -> dict[str, int]:
        """The event time from which results since `time` need input rows, by the name of a source's edge."""
        return self._needs(self.since(time))

    def _needs(self, spans: Mapping[str, FragmentSpan]) -> dict[str, int]:
        return {
            edge.name: min(spans[f.name].position for f in self.plan.fragments if edge in f.edges) for edge in self.plan.sources
        }

    def earliest(self, reach: Mapping[str, int]) -> int | None:
        """The earliest time, the start of a bucket, from which results can be computed. reach: the event time from which rows
        are available, by the name of a source's edge. None if some state depends on trimmed rows for ever."""
        first = max(reach.values())
        if first <= BEGINNING:
            return BEGINNING
        if first >= INFINITY:
            return None

        def is_enough(time: int) -> bool:
            spans = self.since(time)
            has_states = all(spans[name].exact_from >= state_at for name, state_at in self.states.items())
            return has_states and all(needed >= reach[name] for name, needed in self._needs(spans).items())

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


class LogSlice:
    """The part of one source's log in a range of event time: each row in [since, until) once, with new ids from 0, and the
    rising boundaries, up to `until`. Pass it every frame of the log, in order, from any offset on."""

    def __init__(self, since: int, until: int) -> None:
        self.since = since
        self.until = until
        self.reached = BEGINNING
        """The log's stable boundary, as event time (us): no later frame has an older row."""
        self._incarnation = 0
        self._next_id: int | None = None
        self._kept = 0

    def take(self, frame: Frame) -> Data | Boundary | None:
        """The part of a frame in the range; None if there is none. CorruptError if rows are missing before it."""
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
        raise CorruptError(f"a source's log holds a frame that sources do not write: {type(frame).__name__}")

    def _take_rows(self, frame: Data) -> Data | None:
        next_id = frame.first_id if self._next_id is None else self._next_id
        if frame.first_id > next_id:
            raise CorruptError(f"the rows {next_id} to {frame.first_id - 1} of a source's log are missing")
        self._next_id = max(next_id, frame.first_id + frame.batch.num_rows)
        rows = frame.batch.slice(next_id - frame.first_id)
        times = event_times(rows)
        within = (times >= self.since) & (times < self.until)
        if not within.any():
            return None
        if not within.all():
            rows = rows.take(pa.array(np.flatnonzero(within)))
        first_id = self._kept
        self._kept += rows.num_rows
        return Data(frame.origin, 0, first_id, rows, False, frame.ingest, frame.t_max)


class ShardRecomputation:
    """One shard of a fragment. Pass it the frames of its input logs, each log in order; then call `advance`."""

    def __init__(self, plan: Plan, fragment: str, shard: int, span: FragmentSpan) -> None:
        self._fragment = plan.fragment(fragment)
        me = InstanceId(fragment, REPLICA, shard)
        links = links_of(plan, self._fragment, me, plan.silence_us)
        self._ports = {link.port.key: link.port for link in links}
        settings = Settings(plan.bucket_us, 0, 0, memory_bytes=INFINITY)
        policy = Policy(failure=Hold.SUSPEND, stabilization=Hold.SUSPEND)
        merges = merges_of(self._fragment, links)
        self._sunion = SUnion([link.port for link in links], merges, settings, str(me), policy, 0)
        self._sunion.begin_at(span.position, span.exact_from)
        self._host = Host(FragmentGraph(self._fragment), plan.mode)
        self._soutput = SOutput(self._fragment.outputs, shard, Origin(REPLICA, 1), plan.bucket_us)

    def take(self, key: str, frame: Frame) -> None:
        """The next frame of an input. key: 'stream/partition'."""
        port = self._ports[key]
        if isinstance(frame, Data):
            port.take_stable(frame, 0)
        elif isinstance(frame, Boundary):
            port.take_boundary(frame, 0)

    def advance(self) -> Iterator[Append]:
        """The output that follows from the frames so far: rows and boundaries."""
        while items := self._sunion.advance(0, overdue_counts=False):
            for step in items:
                assert isinstance(step, Step) and not step.tentative, "no input is missing, so no step is tentative"
                yield from self._soutput.emit(self._host.step(step), step, State.STABLE, (), 0, _nothing_to_restart)
            self._sunion.trim(self._sunion.base.position)


def _nothing_to_restart(next_ids: tuple[tuple[str, int], ...]) -> Anchor:
    return Anchor(BEGINNING, BEGINNING, next_ids, ())


def within(batch: pa.RecordBatch, since: int, until: int) -> pa.RecordBatch:
    """The rows of results with since <= time < until. batch: ordered by time."""
    first, last = np.searchsorted(event_times(batch), (since, until))
    return batch.slice(first, last - first)


def covering(until: int, bucket_us: int) -> int:
    """The time up to which all input must be known for the results before `until`: the end of a bucket."""
    return bucket_end(until - 1, bucket_us) if BEGINNING < until < INFINITY else until
