"""One query that runs for good: its world, its sources, its output, and the faults that were asked for.

A `LiveQuery` keeps its files in one directory:

    query.json     the record of the query, and how its streams are fed
    logs/          the logs of all instances and sources      checkpoints/   their checkpoints
    posted/STREAM  the records that clients have posted       output.json    where the numbering of the output goes on
    recorded/      what sources have logged lately, for replays
    versions/2/    logs, checkpoints and recorded of a later version of the query

While the query evolves (`deployment.evolution`), two versions run, each in a world of its own with an egress of its own. What
clients get comes from the egress of one of them, and changes at the event time of the takeover: the former ends there
(`logs.egress_switch`), and the other one is led in (`embedded.live.lead`). The mark in output.json says which one it is.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from boreal.model.errors import BorealError, OperatorError, UserError
from boreal.model.frames import Boundary, Frame, LogId, State
from boreal.query.plan import EGRESS, Plan
from boreal.query.planner import Overrides, plan
from boreal.query.spec import Query
from deployment.audit import ChaosAudit
from deployment.corrections import CorrectionHistory, TellCorrection, tell_nobody
from deployment.events import RecordedEvent, stamp
from deployment.evolution import EARLIEST, LEAVING, EgressReport, Evolution, let_go, progress_of, shown, state_of
from deployment.failure_recorder import SILENT, Clients, FailureRecorder
from deployment.instance_fields import instance_fields
from deployment.journal import FailureJournal, JournalEntry
from deployment.liveness import Liveness
from deployment.query_record import QueryRecord, read_query_record
from deployment.slo import MINUTE_MS, ServiceLevel
from deployment.status_fields import INPUT
from deployment.watched_query import tentative_share
from embedded.faults import Fault, check_faults
from embedded.file_checkpoints import FileCheckpointStore
from embedded.file_log import FileLogStore
from embedded.injection import ActiveFault, FaultInjector
from embedded.live.demo import AIRPORTS, SPEED, DemoTopic, demo_query
from embedded.live.output import Output, OutputRing, version_given
from embedded.live.source import LiveSink, LiveSource
from embedded.live.source_archive import SourceArchive, SourceFiles
from embedded.live.topic import PostedTopic, SharedTopic, Topic
from embedded.recording import source_logs
from embedded.run_folder import CHECKPOINTS, LOGS, write_whole
from embedded.world import Clock, World
from formats.dead_letter import (
    BEYOND_LIMIT,
    NO_RECORD,
    PUT_BACK_BEFORE,
    DeadLetterRecord,
    KeptLetter,
    LetterChoice,
    LetterPage,
    ReplayOutcome,
)
from formats.json_text import moment, time_us
from logs.egress_switch import ClientFrame, EgressSwitch, NextVersion
from logs.restart import last_time
from reconcile.events import InstanceId, Reconciled, StateChanged, Threshold
from reconcile.status import Status
from sunion.tape import BEGINNING

SITE = "local"
"""The name of the one site of an embedded installation."""
EGRESS_NAME = f"{EGRESS}.{SITE}"
SEGMENT_BYTES = 1 << 20
"""The size of a log's file. Trimming removes whole files."""
KEPT_LETTERS = 1_000
LOOK_US = 100_000
"""How often it is looked whether the next step of an evolution is due."""
WAITS_FOR_SHARE = 4
"""Results wait for a version that takes over for this share of X at most."""
TRIM_FRAMES = 1_000
RETRY_US = (1_000_000, 30_000_000)
"""A query that fails is restarted after the first, and later the second, of these times."""

PAUSED, FAILURE, STARTING = "PAUSED", SILENT, "STARTING"
_RANKS = [State.STABLE.value, State.UP_FAILURE.value, State.STABILIZATION.value, State.RECOVERING.value]


class LiveWorld(World):
    """A world whose instances report to a listener, so that nothing grows."""

    query: LiveQuery

    def report(self, who: InstanceId, what: StateChanged | Reconciled) -> None:
        self.query.hear_of(self, who, what)


@dataclass(frozen=True, slots=True)
class ClientOutput:
    """How clients are given the results of the version in charge."""

    output: Output
    """Its records."""
    switch: EgressSwitch
    """Where it ends."""


@dataclass(eq=False)
class _Running:
    """A version while it runs."""

    number: int
    plan: Plan
    logs: FileLogStore
    world: LiveWorld
    injector: FaultInjector
    sources: dict[str, LiveSource]
    files: ExitStack
    reached: int = BEGINNING
    """The event time (us) that the stable results of its egress have reached."""
    serving: ClientOutput | None = None
    """Of the version in charge."""
    held_since: int | None = None
    """Since when results wait for the other version."""
    is_looking: bool = False
    """Whether `_look` is called again."""
    is_counting: bool = False
    """Whether `_count_served` is called at each full minute."""

    @property
    def out(self) -> LogId:
        """The log of its egress."""
        return LogId(self.plan.output.name, "r0", 0)

    @property
    def output(self) -> Output:
        assert self.serving is not None, "it is in charge"
        return self.serving.output


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
        self.on_events: Callable[[Sequence[RecordedEvent]], None] = lambda events: None
        """Called with what is to be recorded."""
        self.on_corrected: TellCorrection = tell_nobody
        self.failures = FailureRecorder(record.name)
        self.served = ServiceLevel(record.name)
        self.slo = record.query.slo
        self.chaos = ChaosAudit()
        self.ring = OutputRing()
        self._letters: deque[KeptLetter] = deque(maxlen=KEPT_LETTERS)
        self._letter_count = 0
        self.problem: str | None = None
        self.since: dict[InstanceId, int] = {}
        self.reconciliations: Counter[InstanceId] = Counter()
        self.last_reconciliation_s: dict[InstanceId, float] = {}
        self._corrections: defaultdict[InstanceId, CorrectionHistory] = defaultdict(CorrectionHistory)
        self._changed_ms: dict[str, float] = {}
        self._clients = (False, 0)
        self._states: dict[InstanceId, State | None] = {}
        self._running: _Running | None = None
        self._beside: _Running | None = None
        self._beside_problem = ""
        self._evolution = Evolution()
        self._topics: dict[str, SharedTopic] = {}
        self._files = ExitStack()
        self.on_record: Callable[[int], None] = lambda now: None
        """Called when the query has changed its record itself, with the time."""
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
        if self._running is None:
            return self._retry_at
        found = (each.world.next_at for each in (self._running, self._beside) if each is not None)
        return min((at for at in found if at is not None), default=None)

    def turn(self, now: int) -> None:
        """Perform the first action that is due. An error ends the query's instances; they begin again a little later."""
        try:
            running, beside = self._running, self._beside
            if running is not None and beside is not None and _is_before(beside.world.next_at, running.world.next_at):
                self._turn_beside(beside, now)
            elif running is not None:
                running.world.turn(now)
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
        self._recover(now)
        charge, *others = self.record.runs()
        self._running = self._open(charge, now)
        path, number = self.directory / "output.json", self._running.number
        output = Output(self._running.plan, self._running.logs, path, self.ring, number)
        self._serve(self._running, output)
        self._begin_demo(now)
        self._start(self._running)
        for other in others:
            self._begin_beside(other, now)
        for fault, ends_at in self._faults:
            if ends_at > now and not _problem_of(fault, self.plan):
                self._running.injector.strike(replace(fault, for_us=ends_at - now))
        self._faults = []
        self._begun_at, self.problem = now, None
        self._begin_counting(self._running)
        self._go_on_evolving(now)

    def end(self) -> None:
        """Stop all instances at once. What they have logged stays."""
        running, self._running = self._running, None
        if running is not None:
            self.on_events(self.served.stop(running.world.now / 1_000))
            self._faults = [(active.fault, active.ends_at) for active in running.injector.active if active.ends_at is not None]
            running.files.close()
        self._end_beside()
        self._topics.clear()
        self._files.close()
        self._retry_at = None
        self._states.clear()

    def remove(self) -> None:
        """Stop, and delete all files."""
        self.end()
        shutil.rmtree(self.directory, ignore_errors=True)

    def change(self, record: QueryRecord, now: int) -> None:
        """Run by another record of the same query from now on. A new X holds at once; after other changes, all instances begin
        again from their logs. UserError if it cannot run here; nothing changes then."""
        changed, old, taken = plan_live(record.query, self.is_demo), self.plan, self.record.query.streams
        self.record, self.plan, self.slo = record, changed, record.query.slo
        self.save()
        if record.paused:
            self.end()
            self.on_events(self.failures.end("paused", now / 1_000))
        elif self._running is None:
            self.begin(now)
        elif _without_threshold(changed) != _without_threshold(old) or record.query.streams != taken:
            self.restart(now)
        elif changed != old:
            self._set_threshold(changed)
        if self._running is not None:
            self._begin_counting(self._running)

    def restart(self, now: int) -> None:
        """Begin all instances again from their logs."""
        self.end()
        self.begin(now)

    def _set_threshold(self, changed: Plan) -> None:
        assert self._running is not None
        world = self._running.world
        self._running.plan = world.plan = changed
        self._running.output.delays.x_us = changed.delay_threshold_us
        for source in self._running.sources.values():
            source.set_threshold(changed)
        for who in world.processes:
            world.deliver(who, Threshold.of(changed))

    def _fail(self, error: Exception, now: int) -> None:
        self.end()
        for who in self._instances:
            self._see_state(str(who), SILENT, now)
        self.problem = str(error) if isinstance(error, OperatorError) else f"{type(error).__name__}: {error}"
        if now - self._begun_at > RETRY_US[1]:
            self._retries = 0
        wait_us = min(RETRY_US[0] << min(self._retries, 10), RETRY_US[1])
        self._retries, self._retry_at = self._retries + 1, now + wait_us
        self.note("progress", self.name, f"has failed, and begins again in {wait_us / 1e6:.0f} s: {self.problem}", now, True)

    # Versions

    def _root(self, version: int) -> Path:
        """The directory of a version's logs and checkpoints."""
        return self.directory if version == 1 else self.directory / "versions" / str(version)

    def _archive(self, version: int) -> SourceArchive:
        root = self._root(version)
        return SourceArchive(root / "recorded", root / LOGS)

    def _open(self, version: QueryRecord, now: int) -> _Running:
        """A version with its files and sources, and no instance yet."""
        number, root = version.version, self._root(version.version)
        made = plan_live(version.query, self.is_demo)
        with ExitStack() as files:
            logs = FileLogStore(root / LOGS, SEGMENT_BYTES, self._archive(number).keep)
            store = FileCheckpointStore(root / CHECKPOINTS)
            files.enter_context(closing(logs))
            files.enter_context(closing(store))
            world = LiveWorld(made, self.clock, logs, store, lambda log, frame, at: self._on_append(running, log, frame, at))
            world.query, world.now = self, now
            running = _Running(number, made, logs, world, FaultInjector(world), {}, files)
            anchor = logs.open(running.out).last_anchor()
            running.reached = anchor.time if anchor is not None else BEGINNING
            since = None if version.start == EARLIEST else time_us(version.start)
            streams = version.query.streams
            for name in dict.fromkeys(edge.operator for edge in made.sources):
                topic = self._topic(name).of(number)
                sink = LiveSink(logs, world.append, self._refuse)
                running.sources[name] = LiveSource(name, streams[name], made, topic, sink, now, since)
            running.files = files.pop_all()
        return running

    def _start(self, running: _Running) -> None:
        for who in running.world.processes:
            running.world.start(who)
        for source in running.sources.values():
            self._tick(running, source)

    def _serve(self, running: _Running, output: Output) -> None:
        """Clients get the results of this version from now on."""
        through = output.place.through
        written_to = last_time(running.logs.open(running.out))
        switch = EgressSwitch(output.place.next_stable_id, max(written_to, BEGINNING if through is None else through))
        running.serving = ClientOutput(output, switch)

    def _begin_beside(self, version: QueryRecord, now: int) -> None:
        """Start the version beside the one in charge. If it cannot run, that one goes on."""
        try:
            self._beside = self._open(version, now)
            self._start(self._beside)
        except Exception as error:  # a version that breaks must not break the other one
            self._fail_beside(error)

    def _turn_beside(self, beside: _Running, now: int) -> None:
        try:
            beside.world.turn(now)
        except Exception as error:  # as above
            if beside is not self._beside:
                raise  # it is in charge now
            self._fail_beside(error)

    def _fail_beside(self, error: Exception) -> None:
        self._end_beside()
        self._beside_problem = f"{type(error).__name__}: {error}"

    def _end_beside(self) -> None:
        beside, self._beside = self._beside, None
        self._beside_problem = ""
        if beside is not None:
            beside.files.close()
            for topic in self._topics.values():
                topic.leave(beside.number)

    def _recover(self, now: int) -> None:
        """What the process has left half done when it ended."""
        if state_of(self.record) == LEAVING:
            self.let_go()
        takeover = self.record.takeover
        if takeover is not None and version_given(self.directory / "output.json") == takeover.to:
            self._complete(now)

    # Evolution

    @property
    def evolution(self) -> dict[str, Any] | None:
        """How the change to another version gets on, as statuses show it."""
        beside, problem = self.record.beside, self._beside_problem
        fails = f"version {beside.version}, which fails: {problem}" if beside is not None and problem else ""
        return shown(self.record, fails or self._evolution.waits_for)

    def evolve(self, record: QueryRecord, now: int) -> None:
        """Run by a record that has another state of the evolution."""
        self.record = record
        self.save()
        beside = record.beside
        if beside is None or beside.leaves:
            self.let_go()
        elif self._running is not None and self._beside is None:
            self._begin_beside(record.run(beside.version), now)
        self._evolution = Evolution()
        self._go_on_evolving(now)

    def let_go(self) -> None:
        """Delete what the version that leaves has made."""
        beside = self.record.beside
        if beside is None:
            return
        self._end_beside()
        root = self._root(beside.version)
        for part in (LOGS, CHECKPOINTS, "recorded") if beside.version == 1 else ("",):
            shutil.rmtree(root / part, ignore_errors=True)
        self.record = let_go(self.record)
        self.save()

    def _go_on_evolving(self, now: int) -> None:
        """Take the steps of the evolution, as long as there are any."""
        running = self._running
        if running is None or self.record.beside is None:
            return
        running.world.now = max(running.world.now, now)
        self._prepare(running, now)
        if not running.is_looking:
            self._look(running)

    def _look(self, running: _Running) -> None:
        beside = self.record.beside
        running.is_looking = running is self._running and beside is not None and (beside.takes_over or self._is_taken_over)
        if running.is_looking:
            self._advance(running, running.world.now)
            running.world.at(running.world.now + LOOK_US, lambda: self._look(running))

    @property
    def _is_taken_over(self) -> bool:
        """Whether a takeover is under way."""
        return self.record.takeover is not None

    def _advance(self, running: _Running, now: int) -> None:
        """The next step of the evolution, if one is due."""
        serving = running.serving
        assert serving is not None, "it is in charge"
        x_us = running.plan.delay_threshold_us
        if running.held_since is not None and now - running.held_since > x_us // WAITS_FOR_SHARE:
            # The other version is late: clients get what waits, and it takes over at a later time.
            takeover = self.record.takeover
            self._give(running, serving.switch.prepare(None), now)
            assert takeover is not None and running is self._running, "nothing ends without a takeover"
            self._prepare(running, now)
        state, through = self._state(InstanceId(EGRESS, "r0", 0)), serving.output.place.through
        report = EgressReport(serving.output.version, state, through, serving.switch.status())
        beside = self._beside
        progress = progress_of(beside.plan, _said(beside.world)) if beside is not None else None
        wanted = self._evolution.next(self.record, (SITE,), {SITE: report}, progress)
        if wanted is not None:
            self.record = wanted
            self.save()
            self.on_record(now)
            self._prepare(running, now)

    def _prepare(self, running: _Running, now: int) -> None:
        """Let the version in charge end where the record says, once the other one has come so far."""
        takeover, beside, serving = self.record.takeover, self._beside, running.serving
        if serving is None or takeover is None or beside is None or takeover.to == running.number:
            return
        following = NextVersion(takeover.to, takeover.at, beside.reached >= takeover.at, beside.plan, {})
        self._give(running, serving.switch.prepare(following), now)

    def _on_append_beside(self, beside: _Running, log: LogId, now: int) -> None:
        """A frame of the version that nobody reads."""
        running, takeover = self._running, self.record.takeover
        if log != beside.out:
            return
        if takeover is None:
            out = beside.logs.open(log)
            if out.end % TRIM_FRAMES == 0:
                out.trim(out.next_stable_id - 2)
        elif running is not None and beside.reached >= takeover.at:
            self._prepare(running, now)

    def _take_over(self, last: Boundary, now: int) -> None:
        """The version in charge ends with this boundary, and the other one has come to that time: clients get its results from
        now on."""
        before, after = self._running, self._beside
        assert before is not None and after is not None and before.serving is not None, "both run"
        output = before.serving.output.lead_in(after.plan, after.logs, after.number, last, now)
        before.serving = before.held_since = None
        self._serve(after, output)
        self._running, self._beside = after, before
        after.world.now = max(after.world.now, now)
        self._complete(now)
        self._states.clear()
        self.since.clear()
        for who, process in after.world.processes.items():
            if process.instance is not None:
                self._hear(who, StateChanged(process.instance.state), now)
        self._begin_counting(after)
        self._look(after)

    def _complete(self, now: int) -> None:
        """Enter into the record which version is in charge."""
        takeover = self.record.takeover
        assert takeover is not None
        report = EgressReport(takeover.to, State.STABLE.value, takeover.at, None)
        done = self._evolution.next(self.record, (SITE,), {SITE: report}, None)
        assert done is not None and done.takeover is None, "the egress has changed"
        self.record, self.plan, self.slo = done, plan_live(done.query, self.is_demo), done.query.slo
        self.save()
        self.on_record(now)

    # Sources

    def _topic(self, stream: str) -> SharedTopic:
        if stream not in self._topics:
            topic: Topic
            if self.is_demo:
                topic = DemoTopic(stream)
            else:
                topic = self._files.enter_context(closing(PostedTopic(self.directory / "posted" / quote(stream, safe=""))))
            self._topics[stream] = SharedTopic(topic)
        return self._topics[stream]

    def _begin_demo(self, now: int) -> None:
        """The streams of the demo go on together, at the one that is the furthest."""
        assert self._running is not None
        topics = {name: shared.topic for name, shared in self._topics.items()}
        demo = [(self._running.sources[name], topic) for name, topic in topics.items() if isinstance(topic, DemoTopic)]
        reached = max((topic.reached(source.next_offset) for source, topic in demo), default=0)
        for _, topic in demo:
            topic.begin(now - reached)

    def _tick(self, running: _Running, source: LiveSource) -> None:
        if running in (self._running, self._beside):
            source.tick(running.world.now)
            running.world.at(source.next_tick, lambda: self._tick(running, source))

    def post(self, stream: str, records: Sequence[bytes], now: int) -> None:
        """Write records for a stream, JSON objects; returns when they survive a crash. UserError if the stream takes none."""
        if self._running is None:
            raise UserError("query", self.name, "is not running", f"resume it: boreal query resume {self.name}")
        shared = self._topics.get(stream)
        if shared is None or not isinstance(shared.topic, PostedTopic):
            known = [name for name, other in self._topics.items() if isinstance(other.topic, PostedTopic)]
            fix = f"choose from {', '.join(known)}" if known else "apply a query of your own: the demo feeds itself"
            raise UserError("stream", stream, "takes no rows", fix)
        shared.topic.post(records, now)

    def waiting(self, stream: str, now: int) -> int:
        """How many records of a stream wait for their source."""
        source = self._running.sources.get(stream) if self._running is not None else None
        return source.topic.end(now) - source.next_offset if source is not None else 0

    def _refuse(self, letter: DeadLetterRecord, now: int) -> None:
        self._letters.append(KeptLetter(f"{SITE}:{self._letter_count}", now / 1_000, letter))
        self._letter_count += 1

    def newest_letters(self, choice: LetterChoice, limit: int) -> LetterPage:
        """At most `limit` of the dead letters that are kept, the newest first."""
        found = (each for each in reversed(self._letters) if choice.takes(each.letter, each.at_ms))
        return LetterPage(tuple(islice(found, limit)))

    def replay(self, choice: LetterChoice, limit: int, now: int) -> ReplayOutcome:
        """Post the records of dead letters again, the oldest first, at most `limit`, each at most once: no letter outlives the
        process. UserError as for `post`."""
        left: Counter[str] = Counter()
        done = 0
        for place, each in enumerate(self._letters):
            if not choice.takes(each.letter, each.at_ms):
                continue
            if each.replayed or each.letter.value is None or done == limit:
                left[PUT_BACK_BEFORE if each.replayed else NO_RECORD if each.letter.value is None else BEYOND_LIMIT] += 1
                continue
            self.post(each.letter.source, [each.letter.value], now)
            self._letters[place] = replace(each, replayed=True)
            done += 1
        return ReplayOutcome(done, left)

    def recorded(self) -> SourceFiles:
        """What the sources have logged lately. To be closed."""
        return self._archive(self.record.version).open(source_logs(self.plan))

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
        if fault.stream and self._beside is not None and not _problem_of(fault, self._beside.plan):
            self._beside.injector.strike(fault)  # both versions read the stream
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
        if (others := self._beside) is not None:
            for active in [active for active in others.injector.active if target in ("", _target(active.fault))]:
                others.injector.heal(active)
        return len(struck)

    @property
    def _now(self) -> int:
        return self._running.world.now if self._running is not None else self._begun_at

    # What happens

    def _on_append(self, running: _Running, log: LogId, frame: Frame, now: int) -> None:
        if log == running.out and isinstance(frame, Boundary) and not frame.tentative:
            running.reached = max(running.reached, frame.time)
        if running is self._beside:
            self._on_append_beside(running, log, now)
        if running is not self._running:
            return
        if isinstance(frame, Boundary) and frame.tentative and (who := self._writer_of(log)) is not None:
            self._corrections[who].answer_tentatively(frame.missing, now)
        if log == running.out and running.serving is not None:
            self._give(running, running.serving.switch.take(log, frame), now)

    def _give(self, running: _Running, given: Sequence[ClientFrame], now: int) -> None:
        """Give frames of the version in charge to clients."""
        assert running.serving is not None, "it is in charge"
        output, switch = running.serving.output, running.serving.switch
        instance = running.world.egress().instance
        status = instance.status() if instance else None
        replica = status.inputs[0].read_from if status else ""
        for each in given:
            if each.is_last:
                assert isinstance(each.frame, Boundary), "a version ends with a boundary"
                self._take_over(each.frame, now)
                return
            output.take(each.frame, now, replica or "r0")
        running.held_since = (running.held_since or now) if switch.held else None
        if replica:
            self.on_events(self.failures.see_reads(EGRESS_NAME, {self.plan.output.name: replica}, now / 1_000))
        # Called with every frame, so it looks first whether there is anything to see.
        place = output.place
        if (place.outstanding > 0, place.n_undone) != self._clients or self.failures.failure is not None:
            self._see_clients(output, now)
            self._see_served(output, now)
        self.on_events(self.failures.settle(now / 1_000))

    def _writer_of(self, log: LogId) -> InstanceId | None:
        """The instance that writes a log; None for a source's."""
        for fragment in self.plan.fragments:
            for output in fragment.outputs:
                if output.name == log.stream:
                    return InstanceId(fragment.name, log.replica, log.partition // output.partitions)
        return None

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

    def hear_of(self, world: LiveWorld, who: InstanceId, what: StateChanged | Reconciled) -> None:
        """An instance reports. Those of a version that nobody reads concern nobody."""
        if self._running is not None and self._running.world is world:
            self._hear(who, what, world.now)

    def _hear(self, who: InstanceId, what: StateChanged | Reconciled, now: int) -> None:
        if isinstance(what, Reconciled):
            self.reconciliations[who] += 1
            self.last_reconciliation_s[who] = (now - what.started) / 1e6
            correction = self._corrections[who].end(what.started, what.tuples, what.checkpoint_bytes, now)
            self.on_corrected(self.name, self.plan.mode.value, who, correction)
            return
        self._corrections[who].enter(what.state, now)
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
            "version": self.record.version,
            "evolution": self.evolution,
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
            "tentative_share": tentative_share(egress["counts"]),
            "resources": None,
            "counts": egress["counts"],
            "claims": {"lost": [], "trimmed_before": {}},
            "stalled": [],
            "frozen": sorted({_place(who) for who in self._instances if self._is_frozen(who)}),
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

    def _is_frozen(self, who: InstanceId) -> bool:
        return self._running is not None and self._running.world.processes[who].is_frozen

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
            "problem": self.problem,
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
            "records_wait_for": None,
        }

    def _inputs(self, now: int) -> list[dict[str, Any]]:
        if self._running is not None:
            return [source.status(now) for _, source in sorted(self._running.sources.items())]
        state = "paused" if self.record.paused else "failed"
        unknown = INPUT.keys() - {"name", "state"}
        names = sorted({edge.operator for edge in self.plan.sources})
        return [{"name": name, "state": state, **dict.fromkeys(sorted(unknown))} for name in names]


def plan_live(query: Query, is_demo: bool) -> Plan:
    """The plan of a query that runs here. UserError if it needs Spark, or the demo cannot feed it."""
    scaled = Overrides(bucket_us=query.intervals.bucket * SPEED) if is_demo else Overrides()
    made = plan(query, scaled)
    for fragment in made.fragments:
        if "spark" in fragment.engines:
            fix = "write engine: native, which gives the same results, or apply it to a stack: boreal up"
            raise UserError("engine", "spark", "is not part of an embedded installation", fix)
    streams = demo_query().dump()["streams"] if is_demo else {}
    if is_demo and query.dump()["streams"] != streams:
        raise UserError("streams", None, f"the demo has only {', '.join(AIRPORTS)}", "apply the query under another name")
    return made


def _without_threshold(made: Plan) -> Plan:
    """The same plan for all X: without X, and what follows from it while the query runs."""
    return replace(made, delay_threshold_us=0, boundary_interval_us=0, heartbeat_us=0, silence_us=0, calm_pause_us=0, notes=())


def _is_before(at: int | None, other: int | None) -> bool:
    return at is not None and (other is None or at < other)


def _said(world: World) -> list[dict[str, Any]]:
    """What the living instances of a world say of themselves: the fields that tell how far they are."""
    return [
        {**who._asdict(), "state": status.state.value, "position": status.position}
        for who, process in world.processes.items()
        if process.instance is not None and (status := process.instance.status())
    ]


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
