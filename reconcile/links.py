"""The links of an instance: each port with the replicas of its stream, and the inputs that the ports are merged into."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from boreal.model.frames import Boundary, Data, Frame, LogId, Start
from boreal.query.plan import Fragment, Plan
from reconcile.events import InstanceId
from reconcile.status import InputStatus
from reconcile.upstream import Candidate, Upstream
from sunion.port import Port
from sunion.sunion import Merge
from sunion.tape import MAX_NOTES, Tape

HOP_SAMPLES = 256


@dataclass(slots=True)
class Link:
    """A port and the replicas of its stream. producers: the instances to tell how long the path after them takes; hops: how
    long frames took from them to here, in microseconds; leads: how far the clocks that stamped them were ahead of ours, at
    least; skew_us: the largest of these, how far our clock is behind one that stamped what we read, as far as that shows: 0 is
    no proof that it is right; read_turn: counts the replicas that had nothing to read again."""

    port: Port
    upstream: Upstream
    producers: tuple[InstanceId, ...]
    read_turn: int = 0
    hops: deque[int] = field(default_factory=lambda: deque(maxlen=HOP_SAMPLES))
    leads: deque[int] = field(default_factory=lambda: deque(maxlen=HOP_SAMPLES))
    skew_us: int = 0

    def compare_clocks(self, boundary: Boundary, now: int) -> None:
        """R9: what was stamped before it came here bears no later time than ours, unless our clock is behind. The stamps are
        the producer's and, as ingest, the source's, from which deadlines count."""
        self.leads.append(max(boundary.sent - now, boundary.ingest - now, 0))
        self.skew_us = max(self.leads)

    def lacks(self, frame: Frame) -> bool:
        """Whether the log that this frame is of goes on beyond the stable row that we need next."""
        if isinstance(frame, Start):
            return frame.next_id > self.port.tape.next_id
        return isinstance(frame, Data) and not frame.tentative and frame.first_id > self.port.tape.next_id

    def status(self) -> InputStatus:
        port, live = self.port, self.upstream.live
        return InputStatus(
            key=port.key,
            boundary=port.tape.boundary,
            next_id=port.tape.next_id,
            silent=port.silent,
            failed=port.failed,
            read_from=live.log.replica,
            heard_at=live.seen,
            skew_us=self.skew_us,
            producers=self.producers,
        )

    def log_to_read(self, now: int) -> LogId:
        """A replica's log that reaches us, for reading again; each turn moves on to the next one."""
        upstream = self.upstream
        reachable = [c for c in upstream.candidates if now - c.seen <= upstream.silence_us] or upstream.candidates
        preferred = upstream.correcting or upstream.live
        order = sorted(reachable, key=lambda c: c is not preferred)
        return order[self.read_turn % len(order)].log


def links_of(plan: Plan, fragment: Fragment, me: InstanceId, silence_us: int, most_notes: int = MAX_NOTES) -> list[Link]:
    """The ports, in the order of the fragment's input streams and, within one, of the producer's shards."""
    makers = {edge.name: producer for producer in plan.fragments for edge in producer.outputs}
    links = []
    for edge in fragment.edges:
        maker = makers.get(edge.name)
        for shard in range(edge.producers):
            partition = edge.partition(shard, me.shard)
            replicas = maker.replicas if maker else ("",)
            candidates = [Candidate(LogId(edge.name, replica, partition), 0) for replica in replicas]
            producers = tuple(InstanceId(maker.name, replica, shard) for replica in replicas) if maker else ()
            tape = Tape(most_notes=most_notes)
            port = Port(f"{edge.name}/{partition}", edge.operator, plan.bucket_us, 2 * plan.boundary_interval_us, tape)
            links.append(Link(port, Upstream(candidates, silence_us), producers))
    return links


def merges_of(fragment: Fragment, links: list[Link]) -> tuple[Merge, ...]:
    """The inputs of the fragment's DAG, each as the union of its ports."""
    ports: dict[str, list[int]] = {}
    for at, link in enumerate(links):
        ports.setdefault(link.port.key.rsplit("/", 1)[0], []).append(at)
    merges = []
    for entry in fragment.inputs:
        merged = tuple(at for edge in entry.edges for at in ports[edge.name])
        reordered = frozenset(at for edge in entry.edges for at in ports[edge.name] if edge.schema.names != entry.schema.names)
        merges.append(Merge(entry.name, merged, entry.schema, reordered))
    return tuple(merges)
