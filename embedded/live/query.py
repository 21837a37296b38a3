"""One query that runs for good: its world, its sources, its output, and the faults that were asked for.

A `LiveQuery` keeps its files in one directory:

    query.json     the record of the query, and how its streams are fed
    logs/          the logs of all instances and sources      checkpoints/   their checkpoints
    posted/STREAM  the records that clients have posted       output.json    where the numbering of the output goes on
"""

from __future__ import annotations

import json
import shutil
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from boreal.model.errors import BorealError, UserError
from boreal.model.frames import Frame, LogId, State
from boreal.query.plan import EGRESS, Plan
from boreal.query.planner import Overrides, plan
from boreal.query.spec import Query
from deployment.audit import ChaosAudit
from deployment.events import Event, stamp
from deployment.failure_recorder import SILENT, Clients, FailureRecorder
from deployment.instance_fields import instance_fields
from deployment.journal import FailureJournal, JournalEntry
from deployment.liveness import Liveness
from deployment.query_record import QueryRecord, read_query_record
from deployment.slo import MINUTE_MS, ServiceLevel
from embedded.faults import Fault, check_faults
from embedded.file_checkpoints import FileCheckpointStore
from embedded.file_log import FileLogStore
from embedded.injection import ActiveFault, FaultInjector
from embedded.live.demo import AIRPORTS, SPEED, DemoTopic, demo_query
from embedded.live.output import Output, OutputRing
from embedded.live.source import LiveSource
from embedded.live.topic import PostedTopic, Topic
from embedded.run_folder import CHECKPOINTS, LOGS, write_whole
from embedded.world import Clock, World
from formats.dead_letter import DeadLetterRecord
from formats.json_text import moment
from reconcile.events import InstanceId, Reconciled, StateChanged, Threshold
from reconcile.status import Status

SITE = "local"
"""The name of the one site of an embedded installation."""
EGRESS_NAME = f"{EGRESS}.{SITE}"
SEGMENT_BYTES = 1 << 20
"""The size of a log's file. Trimming removes whole files."""
KEPT_LETTERS = 1_000
RETRY_US = (1_000_000, 30_000_000)
"""A query that fails is restarted after the first, and later the second, of these times."""

PAUSED, FAILURE, STARTING = "PAUSED", SILENT, "STARTING"
_RANKS = [State.STABLE.value, State.UP_FAILURE.value, State.STABILIZATION.value, State.RECOVERING.value]


class LiveWorld(World):
    """A world whose instances report to a listener, so that nothing grows."""

    query: LiveQuery

    def report(self, who: InstanceId, what: StateChanged | Reconciled) -> None:
        self.query.hear(who, what, self.now)


@dataclass
class _Running:
    """What exists while the query runs."""

    logs: FileLogStore
    world: LiveWorld
    injector: FaultInjector
    output: Output
    sources: dict[str, LiveSource]
    files: ExitStack
    is_counting: bool = False
    """Whether `_count_served` is called at each full minute."""


class LiveQuery:
    """A query that runs unless it is paused. Times are clock values: microseconds since the Unix epoch."""

    def __init__(self, record: QueryRecord, is_demo: bool, directory: Path, clock: Clock) -> None:
        """is_demo: whether the demo's flights feed the streams, instead of posted records. UserError if the query cannot run
        here."""
        self.record = record
        self.is_demo = is_demo
        self.directory = directory
        self.clock = clock
        self.plan = plan_live(record.query, is_demo)
        self.journal = FailureJournal()
        self.on_events: Callable[[Sequence[Event]], None] = lambda events: None
        """Called with what is to be recorded."""
        self.failures = FailureRecorder(record.name)
        self.served = ServiceLevel(record.name)
        self.slo = record.query.slo
        self.chaos = ChaosAudit()
        self.ring = OutputRing()
        self.letters: deque[DeadLetterRecord] = deque(maxlen=KEPT_LETTERS)
        self.dead_letters: Counter[str] = Counter()
        self.problem: str | None = None
        self.since: dict[InstanceId, int] = {}
        self.reconciliations: Counter[InstanceId] = Counter()
        self.last_reconciliation_s: dict[InstanceId, float] = {}
        self._changed_ms: dict[str, float] = {}
        self._clients = (False, 0)
        self._states: dict[InstanceId, State | None] = {}
        self._running: _Running | None = None
        self._faults: list[tuple[Fault, int]] = []
        self._retry_at: int | None = None
        self._retries = 0
        self._begun_at = 0

    @classmethod
    def read(cls, directory: Path, clock: Clock) -> LiveQuery:
        """The query of a directory. UserError if it cannot run here; KeyError, TypeError or ValueError if its file is
        damaged."""
        fields = json.loads((directory / "query.json").read_text(encoding="utf-8"))
        _, record = read_query_record(str(fields["record"]["name"]).encode(), json.dumps(fields["record"]).encode())
        assert record is not None
        return cls(record, bool(fields["demo"]), directory, clock)

    @property
    def name(self) -> str:
        return self.record.name

    def save(self) -> None:
        """Write the record, durably enough for a crash of the process."""
        self.directory.mkdir(parents=True, exist_ok=True)
        fields = {"record": json.loads(self.record.to_json()), "demo": self.is_demo}
        write_whole(self.directory / "query.json", json.dumps(fields, indent=1))

    # Time

    @property
    def next_at(self) -> int | None:
        """When `turn` is to be called next; None if nothing is to be done."""
        return self._retry_at if self._running is None else self._running.world.next_at

    def turn(self, now: int) -> None:
        """Perform the first action that is due. An error ends the query's instances; they begin again a little later."""
        try:
            if self._running is not None:
                self._running.world.turn(now)
            else:
                self._retry_at = None
                self.begin(now)
        except Exception as error:  # a query that breaks must not break the others
            self._fail(error, now)

    # Life

    def begin(self, now: int) -> None:
        """Start all instances, where they stopped. Faults that were active go on. Does nothing if they run, or the query is
        paused."""
        if self._running is not None or self.record.paused:
            return
        with ExitStack() as files:
            logs = FileLogStore(self.directory / LOGS, SEGMENT_BYTES)
            store = FileCheckpointStore(self.directory / CHECKPOINTS)
            files.enter_context(closing(logs))
            files.enter_context(closing(store))
            output = Output(self.plan, logs, self.directory / "output.json", self.ring)
            world = LiveWorld(self.plan, self.clock, logs, store, self._on_append)
            world.query, world.now = self, now
            topics = self._topics(files)
            self._running = _Running(logs, world, FaultInjector(world), output, {}, files.pop_all())
        streams = self.record.query.streams
        for name, topic in topics.items():
            given = (name, streams[name], self.plan, topic, logs, world.append, self._refuse, now)
            self._running.sources[name] = LiveSource(*given)
        self._begin_demo(now)
        for who in world.processes:
            world.start(who)
        for source in self._running.sources.values():
            self._tick(source)
        for fault, ends_at in self._faults:
            if ends_at > now and not _problem_of(fault, self.plan):
                self._running.injector.strike(replace(fault, for_us=ends_at - now))
        self._faults = []
        self._begun_at, self.problem = now, None
        self._begin_counting(self._running)

    def end(self) -> None:
        """Stop all instances at once. What they have logged stays."""
        running, self._running = self._running, None
        if running is not None:
            self.on_events(self.served.stop(running.world.now / 1_000))
            self._faults = [(active.fault, active.ends_at) for active in running.injector.active if active.ends_at is not None]
            running.files.close()
        self._retry_at = None
        self._states.clear()

    def remove(self) -> None:
        """Stop, and delete all files."""
        self.end()
        shutil.rmtree(self.directory, ignore_errors=True)

    def change(self, record: QueryRecord, now: int) -> None:
        """Run by another record of the same query from now on. A new X holds at once; after other changes, all instances begin
        again from their logs. UserError if it cannot run here; nothing changes then."""
        changed, old = plan_live(record.query, self.is_demo), self.plan
        self.record, self.plan, self.slo = record, changed, record.query.slo
        self.save()
        if record.paused:
            self.end()
            self.on_events(self.failures.end("paused", now / 1_000))
        elif self._running is None:
            self.begin(now)
        elif replace(changed, delay_threshold_us=old.delay_threshold_us) != old:
            self.restart(now)
        elif changed.delay_threshold_us != old.delay_threshold_us:
            self._set_threshold(changed.delay_threshold_us)
        if self._running is not None:
            self._begin_counting(self._running)

    def restart(self, now: int) -> None:
        """Begin all instances again from their logs."""
        self.end()
        self.begin(now)

    def _set_threshold(self, threshold_us: int) -> None:
        assert self._running is not None
        world = self._running.world
        world.plan = self.plan
        self._running.output.delays.x_us = threshold_us
        for who in world.processes:
            world.deliver(who, Threshold(threshold_us))

    def _fail(self, error: Exception, now: int) -> None:
        self.end()
        for who in self._instances:
            self._see_state(str(who), SILENT, now)
        self.problem = f"{type(error).__name__}: {error}"
        if now - self._begun_at > RETRY_US[1]:
            self._retries = 0
        wait_us = min(RETRY_US[0] << min(self._retries, 10), RETRY_US[1])
        self._retries, self._retry_at = self._retries + 1, now + wait_us
        self.note("progress", self.name, f"has failed, and begins again in {wait_us / 1e6:.0f} s: {self.problem}", now, True)

    # Sources

    def _topics(self, files: ExitStack) -> dict[str, Topic]:
        names = list(dict.fromkeys(edge.operator for edge in self.plan.sources))
        if self.is_demo:
            return {name: DemoTopic(name) for name in names}
        return {
            name: files.enter_context(closing(PostedTopic(self.directory / "posted" / quote(name, safe="")))) for name in names
        }

    def _begin_demo(self, now: int) -> None:
        """The streams of the demo go on together, at the one that is the furthest."""
        assert self._running is not None
        demo = [(s, s.topic) for s in self._running.sources.values() if isinstance(s.topic, DemoTopic)]
        reached = max((topic.reached(source.next_offset) for source, topic in demo), default=0)
        for _, topic in demo:
            topic.begin(now - reached)

    def _tick(self, source: LiveSource) -> None:
        running = self._running
        if running is not None and running.sources.get(source.name) is source:
            source.tick(running.world.now)
            running.world.at(source.next_tick, lambda: self._tick(source))

    def post(self, stream: str, records: Sequence[bytes], now: int) -> None:
        """Write records for a stream, JSON objects; returns when they survive a crash. UserError if the stream takes none."""
        if self._running is None:
            raise UserError("query", self.name, "is not running", f"resume it: boreal query resume {self.name}")
        source = self._running.sources.get(stream)
        if source is None or not isinstance(source.topic, PostedTopic):
            known = [name for name, other in self._running.sources.items() if isinstance(other.topic, PostedTopic)]
            fix = f"choose from {', '.join(known)}" if known else "apply a query of your own: the demo feeds itself"
            raise UserError("stream", stream, "takes no rows", fix)
        source.topic.post(records, now)

    def waiting(self, stream: str, now: int) -> int:
        """How many records of a stream wait for their source."""
        source = self._running.sources.get(stream) if self._running is not None else None
        return source.topic.end(now) - source.next_offset if source is not None else 0

    def _refuse(self, letter: DeadLetterRecord) -> None:
        self.letters.append(letter)
        self.dead_letters[letter.source] += 1

    # Faults

    def check_fault(self, fault: Fault) -> None:
        """UserError, with the choices, if the query has no such stream or replica."""
        check_faults([fault], self.plan)

    @property
    def fault_targets(self) -> list[str]:
        """What faults may concern: streams and replicas."""
        return [*dict.fromkeys(edge.operator for edge in self.plan.sources), *dict.fromkeys(map(_place, self._instances))]

    def strike(self, fault: Fault, now: int, text: str = "", by: str | None = None) -> tuple[str, ActiveFault]:
        """Begin a fault; it ends after its duration. Returns its id, and the fault. text, by: for its events. UserError if the
        query has no such target, or does not run."""
        self.check_fault(fault)
        if self._running is None:
            raise UserError("fault", self.name, "does not run", f"resume it: boreal query resume {self.name}")
        self._running.world.now = max(self._running.world.now, now)
        self.note("fault", _target(fault), f"{fault.kind.replace('_', ' ')} for {(fault.for_us or 0) / 1e6:g} s", now, True)
        active = self._running.injector.strike(fault)
        begun_ms, ends_at = self._now / 1_000, active.ends_at
        id_ = f"{stamp(begun_ms)}-{_target(fault)}"
        said = {
            "id": id_,
            "fault": text,
            "query": self.name,
            "targets": [_target(fault)],
            "by": by,
            "begun_ms": begun_ms,
            "ends_at_ms": None if ends_at is None else ends_at / 1_000,
            "ended_ms": None,
        }

        def undone() -> None:
            self.note("fault", _target(fault), "is over", self._now)
            self.on_events(self.chaos.see(id_, [{**said, "ended_ms": self._now / 1_000}], self._now / 1_000))
            self._see_frozen()

        self.on_events(self.chaos.see(id_, [said], begun_ms))
        self._see_frozen()
        active.undo.append(undone)
        return id_, active

    def heal(self, target: str) -> int:
        """End all faults of a stream or replica, or all faults if the target is ''. Returns how many there were."""
        if self._running is None:
            return 0
        struck = [active for active in self._running.injector.active if target in ("", _target(active.fault))]
        for active in struck:
            self._running.injector.heal(active)
        return len(struck)

    @property
    def _now(self) -> int:
        return self._running.world.now if self._running is not None else self._begun_at

    # What happens

    def _on_append(self, log: LogId, frame: Frame, now: int) -> None:
        running = self._running
        if running is not None and log.stream == self.plan.output.name:
            instance = running.world.egress().instance
            status = instance.status() if instance else None
            replica = status.inputs[0].read_from if status else ""
            running.output.take(frame, now, replica or "r0")
            if replica:
                self.on_events(self.failures.see_reads(EGRESS_NAME, {self.plan.output.name: replica}, now / 1_000))
            # Called with every frame, so it looks first whether there is anything to see.
            place = running.output.place
            if (place.outstanding > 0, place.n_undone) != self._clients or self.failures.failure is not None:
                self._see_clients(running.output, now)
                self._see_served(running.output, now)
            self.on_events(self.failures.settle(now / 1_000))

    def _see_clients(self, output: Output, now: int) -> None:
        """Record what clients see of a failure."""
        place = output.place
        self._clients = place.outstanding > 0, place.n_undone
        since = None if output.tentative_since is None else output.tentative_since / 1_000
        seen = Clients(place.outstanding, since, output.cause, place.n_undone, output.delays.violations, place.n_stable)
        self.on_events(self._recorder.see_clients(SITE, seen, now / 1_000))

    def _begin_counting(self, running: _Running) -> None:
        """Count what clients are given, as long as there is an objective."""
        if self.slo is None:
            self.on_events(self.served.stop(running.world.now / 1_000))
        elif running.is_counting:
            self._see_served(running.output, running.world.now)
        else:
            running.is_counting = True
            self._count_served(running)

    def _count_served(self, running: _Running) -> None:
        if self.slo is None:
            running.is_counting = False
        elif self._running is running:
            now, minute_us = running.world.now, int(MINUTE_MS * 1_000)
            self._see_served(running.output, now)
            running.world.at(now - now % minute_us + minute_us, lambda: self._count_served(running))

    def _see_served(self, output: Output, now: int) -> None:
        if self.slo is not None:
            delays, is_tentative = output.delays, output.place.outstanding > 0
            self.on_events(self.served.see(SITE, delays.rows, delays.violations, is_tentative, now / 1_000))

    @property
    def _recorder(self) -> FailureRecorder:
        """The recorder of failures, with what is in force."""
        spec = self.record.spec
        x_ms = self.plan.delay_threshold_us / 1_000
        self.failures.regime = {"x_ms": x_ms, "reconcile": spec["reconcile"], "policy": spec["policy"]}
        return self.failures

    def _see_state(self, name: str, state: str, now: int, redo_s: float | None = None, status: Status | None = None) -> None:
        """Record what a change of an instance means for failures."""
        if self._running is not None:
            self._see_clients(self._running.output, now)
        now_ms = max(now / 1_000, self._changed_ms.get(name, 0.0) + 0.001)
        self._changed_ms[name] = now_ms
        failed = [each for each in status.inputs if each.failed] if status is not None else []
        missing = {*(status.missing if status is not None else ()), *(each.key.partition("/")[0] for each in failed)}
        silent = [each.heard_at for each in failed if each.silent]
        since_ms = min(silent) / 1_000 if silent else None
        self.on_events(self._recorder.see_state(name, state, now_ms, missing, since_ms, redo_s))

    def _see_frozen(self) -> None:
        """Frozen instances are silent, until they are awake."""
        for who in self._instances:
            process = self._running.world.processes[who] if self._running is not None else None
            if process is None or process.instance is None:
                continue
            if process.is_frozen != self.failures.is_silent(str(who)):
                state = SILENT if process.is_frozen else process.instance.state.value
                self._see_state(str(who), state, self._now)

    def hear(self, who: InstanceId, what: StateChanged | Reconciled, now: int) -> None:
        """An instance reports."""
        if isinstance(what, Reconciled):
            self.reconciliations[who] += 1
            self.last_reconciliation_s[who] = (now - what.started) / 1e6
            return
        before = self._states.get(who)
        process = self._running.world.processes[who] if self._running is not None else None
        said = process.instance.status() if process is not None and process.instance is not None else None
        was_redoing = before is State.STABILIZATION and what.state is State.STABLE
        redo_s = self.last_reconciliation_s.get(who) if was_redoing else None
        name = EGRESS_NAME if who.fragment == EGRESS else str(who)
        self._see_state(name, what.state.value if what.state else SILENT, now, redo_s, said)
        self._states[who], self.since[who] = what.state, now
        state = what.state.value if what.state else FAILURE
        if who.fragment != EGRESS:
            lacks = f", missing {', '.join(said.missing)}" if said is not None and said.missing else ""
            was = before.value if before else STARTING
            self.note("state", str(who), f"{was} -> {state}{lacks}", now, state == FAILURE)

    def note(self, kind: str, who: str, text: str, now: int, is_bad: bool = False) -> None:
        """Enter something in the journal."""
        self.journal.enter(JournalEntry(now // 1_000, kind, who, text, is_bad))

    # Status

    def status(self, now: int) -> dict[str, Any]:
        """The state of the query: the fields of `deployment.status_fields.QUERY`."""
        egress = self._egress(now)
        replicas = [self._replica(who) for who in self._instances]
        alphas = [replica["alpha_x_ms"] for replica in replicas if replica["alpha_x_ms"] is not None]
        shards = {(replica["fragment"], replica["shard"]) for replica in replicas}
        at_work = {(r["fragment"], r["shard"]) for r in replicas if r["state"] in _RANKS[:3]}
        return {
            "v": 1,
            "process": f"query:{self.name}",
            "kind": "query",
            "query": self.name,
            "name": self.name,
            "at_ms": now / 1_000,
            "revision": self.record.revision,
            "paused": self.record.paused,
            "ready": egress["ready"] and shards == at_work,
            "state": egress["state"],
            "x_ms": self.plan.delay_threshold_us / 1_000,
            "alpha_x_ms": min(alphas, default=None),
            "delay_ms": egress["delay_ms"],
            "violations": egress["violations"],
            "slo": self._slo(now),
            "inputs": self._inputs(now),
            "replicas": replicas,
            "jobs": [],
            "egresses": [egress],
            "tentative": egress["tentative"],
            "counts": egress["counts"],
            "claims": {"lost": [], "trimmed_before": {}},
            "stalled": [],
            "clock": [],
            "notes": list(self.plan.notes),
            "journal": self.journal.dump(),
            "seen": [],
        }

    def _slo(self, now: int) -> dict[str, Any] | None:
        if self.slo is None:
            return None
        if self._running is not None:
            self._see_served(self._running.output, now)
        return self.served.report(self.slo, now / 1_000)

    def instances(self, now: int) -> list[dict[str, Any]]:
        """What each living instance says of itself: the fields of `instances` in `deployment.status_fields.NODE`."""
        return [entry for who in self._instances if (entry := self._instance(who, now)) is not None]

    def liveness(self, now: int) -> Liveness:
        """Whether it runs as its record says."""
        said, status = self.instances(now), self.status(now)
        states = {f"{each['fragment']}.{each['replica']}.{each['shard']}": str(each["state"]) for each in status["replicas"]}
        waits_for = () if self.record.paused else tuple(who for who, state in states.items() if state == FAILURE)
        missing = sorted({name for entry in said for name in entry["missing"]})
        least_x_ms = max((float(entry["least_x_ms"]) for entry in said), default=0.0)
        is_ready = bool(status["ready"]) and not self.record.paused and not waits_for
        return Liveness(is_ready, waits_for, states, tuple(missing), self.problem, least_x_ms)

    @property
    def _instances(self) -> list[InstanceId]:
        return [
            InstanceId(fragment.name, replica, shard)
            for fragment in self.plan.fragments
            if fragment.name != EGRESS
            for replica in fragment.replicas
            for shard in range(fragment.shards)
        ]

    def _absent(self) -> str:
        return PAUSED if self.record.paused else FAILURE

    def _state(self, who: InstanceId) -> str:
        if self._running is None:
            return self._absent()
        process = self._running.world.processes[who]
        return process.instance.state.value if process.instance is not None and not process.is_frozen else FAILURE

    def _instance(self, who: InstanceId, now: int) -> dict[str, Any] | None:
        process = self._running.world.processes[who] if self._running is not None else None
        if process is None or process.instance is None or process.is_frozen:
            return None
        status = process.instance.status()
        return {
            "fragment": who.fragment,
            "replica": who.replica,
            "shard": who.shard,
            "engine": "native",
            "state": status.state.value,
            "since_ms": self.since.get(who, now) / 1_000,
            **instance_fields(status, now),
            "reconciliations": self.reconciliations[who],
            "last_reconciliation_s": self.last_reconciliation_s.get(who),
            "unconfirmed_frames": 0,
        }

    def _replica(self, who: InstanceId) -> dict[str, Any]:
        instance = self._running.world.processes[who].instance if self._running is not None else None
        status = instance.status() if instance is not None else None
        return {
            "fragment": who.fragment,
            "replica": who.replica,
            "shard": who.shard,
            "engine": "native",
            "site": SITE,
            "state": self._state(who),
            "since_ms": self.since[who] / 1_000 if who in self.since else None,
            "alpha_x_ms": status.alpha_x_us / 1_000 if status else None,
            "missing": list(status.missing) if status else [],
            "position": status.position if status else None,
            "stalled": False,
            "claim_lost": False,
        }

    def _egress(self, now: int) -> dict[str, Any]:
        running = self._running
        state = self._state(InstanceId(EGRESS, "r0", 0))
        place = running.output.place if running is not None else None
        since_us = running.output.tentative_since if running is not None else None
        return {
            "site": SITE,
            "state": state,
            "ready": state in _RANKS[:3],
            "delay_ms": running.output.delays.summary_ms(now) if running is not None else dict.fromkeys(("p50", "p99", "max")),
            "violations": running.output.delays.violations if running is not None else 0,
            "tentative": {
                "outstanding": place.outstanding if place else 0,
                "since": moment(since_us) if since_us is not None else None,
                "cause": (running.output.cause or None) if running is not None else None,
            },
            "counts": {
                "stable": place.n_stable if place else 0,
                "tentative": place.n_tentative if place else 0,
                "undone": place.n_undone if place else 0,
            },
        }

    def _inputs(self, now: int) -> list[dict[str, Any]]:
        if self._running is not None:
            return [source.status(now) for _, source in sorted(self._running.sources.items())]
        state = "paused" if self.record.paused else "failed"
        unknown = ("last_boundary", "last_ingest_age_ms", "rows", "dlq", "clamped", "ahead", "idle_partitions", "spooled_bytes")
        names = sorted({edge.operator for edge in self.plan.sources})
        return [{"name": name, "state": state, **dict.fromkeys(unknown)} for name in names]


def plan_live(query: Query, is_demo: bool) -> Plan:
    """The plan of a query that runs here. UserError if it needs Spark, or the demo cannot feed it."""
    scaled = Overrides(bucket_us=query.tuning.bucket * SPEED) if is_demo else Overrides()
    made = plan(query, scaled)
    for fragment in made.fragments:
        if "spark" in fragment.engines:
            fix = "write engine: native, which gives the same results, or apply it to a stack: boreal up"
            raise UserError("engine", "spark", "is not part of an embedded installation", fix)
    streams = demo_query().dump()["streams"] if is_demo else {}
    if is_demo and query.dump()["streams"] != streams:
        raise UserError("streams", None, f"the demo has only {', '.join(AIRPORTS)}", "apply the query under another name")
    return made


def _target(fault: Fault) -> str:
    return fault.stream or f"{fault.fragment}.{fault.replica}"


def _place(who: InstanceId) -> str:
    return f"{who.fragment}.{who.replica}"


def _problem_of(fault: Fault, made: Plan) -> BorealError | None:
    try:
        check_faults([fault], made)
    except UserError as error:
        return error
    return None
