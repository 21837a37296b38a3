"""The links of an instance: each port with the replicas of its stream, and the inputs into which the ports are merged."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from boreal.model.frames import Boundary, Data, Frame, LogId, Start
from boreal.query.plan import Fragment, Plan
from reconcile.events import InstanceId
from reconcile.limits import PRODUCTION, Limits
from reconcile.status import PortStatus
from reconcile.upstream import Candidate, Upstream
from sunion.port import Port
from sunion.sunion import Merge
from sunion.tape import Tape

HOP_SAMPLES = 256
"""The number of recent boundaries whose latency and clock lead count, for each port."""


class RecentLargest:
    """The largest of the last HOP_SAMPLES values. Only values that may still become the largest are kept."""

    def __init__(self) -> None:
        self.value = 0
        """The largest of them; 0 if there are none. Other threads may read it."""
        self._noted = 0
        self._falling: deque[tuple[int, int]] = deque()
        """(number, value), with falling values."""

    def note(self, value: int) -> None:
        """Note a value, which is not negative."""
        falling = self._falling
        while falling and falling[-1][1] <= value:
            falling.pop()
        self._noted += 1
        falling.append((self._noted, value))
        if falling[0][0] <= self._noted - HOP_SAMPLES:
            falling.popleft()
        self.value = falling[0][1]


@dataclass(slots=True)
class Link:
    """A port and the replicas of its stream."""

    port: Port
    """The port."""
    upstream: Upstream
    """The replicas of its stream, and which of them is read."""
    producers: tuple[InstanceId, ...]
    """The instances that write the stream. They are sent the latency of the path after them; none for a source."""
    sources: tuple[str, ...]
    """The source streams from which it is made."""
    rows_at: int = 0
    """Clock value when it brought rows last, in microseconds."""
    read_turn: int = 0
    """How many answers to reads were empty or unavailable. It selects the replica for the next read."""
    hop: RecentLargest = field(default_factory=RecentLargest)
    """The latencies from the producer's sending of a boundary to its arrival here, in microseconds."""
    lead: RecentLargest = field(default_factory=RecentLargest)
    """How far the stamps of boundaries were ahead of our clock, in microseconds; 0 if they were not."""
    told: dict[InstanceId, tuple[int, int]] = field(default_factory=dict)
    """For each producer: the latency of the path that it was told last, in microseconds, and in which incarnation."""

    @property
    def skew_us(self) -> int:
        """How far our clock is behind at least, in microseconds. 0 does not prove that the clock is right."""
        return self.lead.value

    def compare_clocks(self, boundary: Boundary, now: int) -> None:
        """R9: note how far the stamps of a boundary are ahead of our clock. A boundary was stamped before it arrived, so a
        later stamp shows that our clock is behind. The stamps are the producer's time of sending, and the source's time of
        ingest, from which deadlines count."""
        self.lead.note(max(boundary.sent - now, boundary.ingest - now, 0))

    def to_tell(self, micros: int, is_reminder: bool) -> list[InstanceId]:
        """The producers that are to be told this latency of the path, because it is news for them, or to remind them: a message
        may be lost."""
        found = []
        for who, candidate in zip(self.producers, self.upstream.candidates, strict=False):
            news = micros, max(candidate.incarnation, candidate.newest_heard)
            if is_reminder or self.told.get(who) != news:
                self.told[who] = news
                found.append(who)
        return found

    def lacks(self, frame: Frame) -> bool:
        """Whether the log of this frame skips the next stable row that the port needs."""
        if isinstance(frame, Start):
            return frame.next_id > self.port.tape.next_id
        return isinstance(frame, Data) and not frame.tentative and frame.first_id > self.port.tape.next_id

    def status(self) -> PortStatus:
        """The input partition as it is now."""
        port, live = self.port, self.upstream.live
        return PortStatus(
            key=port.key,
            boundary=port.tape.boundary,
            next_id=port.tape.next_id,
            silent=port.silent,
            failed=port.failed,
            read_from=live.log.replica,
            heard_at=live.seen,
            skew_us=self.skew_us,
            hop_us=self.hop.value,
            producers=self.producers,
        )

    def log_to_read(self, now: int) -> LogId:
        """The log to read rows again from, of a replica that is not silent if there is one. Each turn moves on to the next
        log."""
        upstream = self.upstream
        reachable = [c for c in upstream.candidates if not upstream.is_silent(c, now)] or upstream.candidates
        preferred = upstream.correcting or upstream.live
        order = sorted(reachable, key=lambda c: c is not preferred)
        return order[self.read_turn % len(order)].log


def links_of(plan: Plan, fragment: Fragment, me: InstanceId, silence_us: int, limits: Limits = PRODUCTION) -> list[Link]:
    """The links, in the order of the fragment's input streams and, within a stream, of the producer's shards."""
    makers = {edge.name: producer for producer in plan.fragments for edge in producer.outputs}
    links = []
    for edge in fragment.edges:
        maker = makers.get(edge.name)
        for shard in range(edge.producers):
            partition = edge.partition(shard, me.shard)
            replicas = maker.replicas if maker else ("",)
            candidates = [Candidate(LogId(edge.name, replica, partition), 0) for replica in replicas]
            producers = tuple(InstanceId(maker.name, replica, shard) for replica in replicas) if maker else ()
            tape = Tape(most_notes=limits.notes)
            port = Port(f"{edge.name}/{partition}", edge.operator, plan.bucket_us, 2 * plan.boundary_interval_us, tape)
            upstream = Upstream(candidates, silence_us, near_silences=limits.near_silences)
            links.append(Link(port, upstream, producers, plan.sources_of(edge)))
    return links


def merges_of(fragment: Fragment, links: list[Link]) -> tuple[Merge, ...]:
    """The inputs of the fragment's DAG. Each is the union of its ports."""
    ports: dict[str, list[int]] = {}
    for at, link in enumerate(links):
        ports.setdefault(link.port.key.rsplit("/", 1)[0], []).append(at)
    merges = []
    for entry in fragment.inputs:
        merged = tuple(at for edge in entry.edges for at in ports[edge.name])
        reordered = frozenset(at for edge in entry.edges for at in ports[edge.name] if edge.schema.names != entry.schema.names)
        merges.append(Merge(entry.name, merged, entry.schema, reordered))
    return tuple(merges)
