"""`boreal run`: runs a query over files or generators in one process, with scripted faults, and reports the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TextIO

from boreal.model.frames import INFINITY, Frame, LogId, State
from boreal.query.plan import EGRESS, Plan
from embedded.faults import Fault
from embedded.file_sources import SourceRows
from embedded.injection import FaultInjector
from embedded.paced_sources import Pace, PacedSources
from embedded.recorded_sources import RecordedSources
from embedded.recording import Recording
from embedded.world import Clock, World
from formats.changelog import ClientLog
from logs.checkpoints import CheckpointStore
from logs.log import LogStore
from reconcile.events import Reconciled, StateChanged

PATIENCE_US = 600_000_000
"""How long a run waits after its last fault until it is stable, in microseconds of run time."""


@dataclass
class Outcome:
    """The result of a run."""

    report: dict[str, Any]
    """The contents of report.json."""
    is_stable: bool
    """Whether every replica ended STABLE and had processed all input."""


@dataclass
class Run:
    """An embedded run of a query."""

    plan: Plan
    """The plan of the query."""
    rows: dict[str, SourceRows]
    """The rows of each source stream."""
    pace: Pace | Recording
    """How fast the rows are logged; a recording has them, and when each came."""
    faults: Sequence[Fault]
    """The faults, with times in microseconds of run time."""
    clock: Clock
    """The run clock, in microseconds."""
    logs: LogStore
    """The store of all logs."""
    store: CheckpointStore
    """The store of checkpoints."""
    seed: int | None = None
    """The seed, for the report; None if there is none."""
    changes: TextIO | None = None
    """The file for changes.jsonl; None for no file."""
    stable: TextIO | None = None
    """The file for stable.jsonl; None for no file."""
    watch: Callable[[Run], None] | None = None
    """Called with the run several times per boundary interval of run time, to show progress."""
    world: World = field(init=False)
    """The instances of the run and the network between them."""
    sources: PacedSources | RecordedSources = field(init=False)
    """The source streams."""
    client: ClientLog = field(init=False)
    """What clients are given."""
    faults_over_at: int = field(init=False)
    """When the last fault is over (us of run time)."""
    never_heals: bool = field(init=False)
    """Whether a fault lasts to the end of the run."""

    def __post_init__(self) -> None:
        plan = self.plan
        self.client = ClientLog(
            plan.query,
            plan.output.schema,
            plan.output_key,
            plan.bucket_us,
            plan.delay_threshold_us,
            self.changes,
            self.stable,
            plan.disorder_us > 0,
        )
        self.world = World(plan, self.clock, self.logs, self.store, self._on_append)
        if isinstance(self.pace, Recording):
            self.sources = RecordedSources(plan, self.pace, self.world.append)
        else:
            self.sources = PacedSources(plan, self.rows, self.pace, self.world.append)
        self.faults_over_at = max((f.at_us + (f.for_us or 0) for f in self.faults), default=0)
        self.never_heals = any(f.for_us is None for f in self.faults)

    def go(self) -> Outcome:
        """Run until all input is read, all faults are over and all replicas are STABLE, or for PATIENCE_US at most."""
        world, injector = self.world, FaultInjector(self.world)
        for who in world.processes:
            world.start(who)
        for fault in self.faults:
            world.at(fault.at_us, partial(injector.strike, fault))
        self._tick()
        world.run(self._is_over)
        return Outcome(self._report(), self._is_settled(include_dead=True))

    # Time

    def _tick(self) -> None:
        self.sources.tick(self.world.now)
        if self.watch is not None:
            self.watch(self)
        self.world.at(self.world.now + self.sources.tick_us, self._tick)

    def _on_append(self, log: LogId, frame: Frame, now: int) -> None:
        if log.stream == self.plan.output.name:
            self.client.take(frame, now, self._read_replica())

    def _read_replica(self) -> str:
        instance = self.world.egress().instance
        return instance.status().inputs[0].read_from or "r0" if instance else "r0"

    def _is_over(self) -> bool:
        ended = self.sources.ended_at
        now = self.world.now
        if ended is None or now < self.faults_over_at:
            return False
        if self._is_settled(include_dead=False):
            return True
        waited = now - max(ended, self.faults_over_at)
        return waited > (3 * self.plan.delay_threshold_us + 1_000_000 if self.never_heals else PATIENCE_US)

    def _is_settled(self, include_dead: bool) -> bool:
        for process in self.world.processes.values():
            instance = process.instance
            if instance is None:
                if include_dead:
                    return False
                continue
            if process.is_busy or instance.state is not State.STABLE or instance.status().position < INFINITY:
                return False
        return True

    # The report

    def _report(self) -> dict[str, Any]:
        plan = self.plan
        alphas = [p.instance.status().alpha_x_us for p in self.world.processes.values() if p.instance]
        return {
            "query": plan.query,
            "mode": str(plan.mode),
            "policy": str(plan.policy),
            "replicas": max(len(fragment.replicas) for fragment in plan.fragments),
            "x_ms": plan.delay_threshold_us / 1000,
            "alpha_x_ms": min(alphas) / 1000 if alphas else None,
            "bucket_ms": plan.bucket_us / 1000,
            "seed": self.seed,
            **self.client.delay_new(),
            **self.client.counts(),
            "n_dlq": sum(len(rows.rejects) for rows in self.rows.values()),
            "n_clamped": sum(rows.clamped for rows in self.rows.values()),
            "reconciliations": self._reconciliations(),
            "states": self._states(),
            "notes": list(plan.notes),
        }

    def _reconciliations(self) -> list[dict[str, Any]]:
        return [
            {
                "fragment": entry.who.fragment,
                "replica": entry.who.replica,
                "shard": entry.who.shard,
                "mode": str(self.plan.mode),
                "started_ms": entry.what.started / 1000,
                "seconds": (entry.at - entry.what.started) / 1e6,
                "tuples_redone": entry.what.tuples,
                "checkpoint_bytes": entry.what.checkpoint_bytes,
            }
            for entry in self.world.journal
            if isinstance(entry.what, Reconciled) and entry.who.fragment != EGRESS
        ]

    def _states(self) -> list[dict[str, Any]]:
        spans: list[dict[str, Any]] = []
        for who in self.world.processes:
            if who.fragment == EGRESS:
                continue
            entries = [e for e in self.world.journal if e.who == who and isinstance(e.what, StateChanged)]
            ends = [entry.at for entry in entries[1:]] + [self.world.now]
            for entry, end in zip(entries, ends, strict=True):
                assert isinstance(entry.what, StateChanged)
                spans.append(
                    {
                        "fragment": who.fragment,
                        "replica": who.replica,
                        "shard": who.shard,
                        "state": entry.what.state.value if entry.what.state else "FAILURE",
                        "from_ms": entry.at / 1000,
                        "to_ms": end / 1000,
                    }
                )
        return spans
