"""One run of a scenario: production instances in a simulated world, and the observations.

`observe` only records; `simulation.invariants` judges.
"""

from __future__ import annotations

import hashlib
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import add
from random import Random

from boreal.model.codec import encode
from boreal.model.frames import INFINITY, Frame, LogId, State
from embedded.network import LinkDelay
from embedded.world import Conditions, ModelClock, Process
from logs.memory_log import MemoryLogStore
from reconcile.events import InstanceId, StateChanged
from reconcile.stagger import CALM_BEATS
from reconcile.status import Status
from simulation.client import Client, faults_of_records
from simulation.clocks import MachineClock
from simulation.feed import SourceFeeder
from simulation.scenario import Scenario
from simulation.store import SimulatedStore
from simulation.strikes import Saboteur
from simulation.world import SimulatedWorld

UNFAIR_US = 10_000
"""How much more than its reader's an instance's alpha*X may be, because the two are not measured at the same moment."""
UNFAIR_HEARTBEATS = 6
"""For how long it may be so. A message about the path that was lost is repeated at every CALM_BEATS-th heartbeat."""
PATIENCE_US = 20_000_000
"""How long, beyond four times X, a run may take to settle after the last fault and the last input."""
MOST_EVENTS = 200_000
"""More than any run needs: a run with more is in an endless loop."""


@dataclass(frozen=True, slots=True)
class InstanceSpan:
    """A span of run time of one instance."""

    who: InstanceId
    """The instance."""
    since_us: int
    """The start, in microseconds of run time."""
    until_us: int
    """The end."""


@dataclass
class Observation:
    """What happened in a run. Times are microseconds of run time, if nothing else is said."""

    frames: dict[LogId, list[tuple[int, Frame]]] = field(default_factory=dict)
    """(when, frame) of every log but the sources', in order."""
    ticks: list[tuple[int, int]] = field(default_factory=list)
    """(when, the event time that the sources had reached)."""
    states: list[tuple[int, InstanceId, State | None]] = field(default_factory=list)
    """(when, the instance, the state that it entered); None for dead."""
    trailing: list[InstanceSpan] = field(default_factory=list)
    """For each instance, the longest span in which input that was stable for a bucket or more was not processed (R16)."""
    hesitant: list[InstanceSpan] = field(default_factory=list)
    """Spans in which a replica's failure had healed, and it could have begun the correction but had not."""
    unfair: list[tuple[InstanceId, InstanceId, int, int]] = field(default_factory=list)
    """(producer, reader, alpha*X of both) if the reader had less for longer than measurements take to spread."""
    alpha_x_us: int = INFINITY
    """The smallest alpha*X of any instance at any time."""
    x_us_max: int = 0
    """The largest X at any time."""
    settled: bool = False
    """Whether every replica ended STABLE with all its input read."""
    unsettled: str = ""
    """The names of the replicas that did not."""
    ended_at: int = 0
    """The end of the run."""
    quiet_at: int = 0
    """When the last fault had healed."""
    trimmed: int = 0
    """How many frames were trimmed from the sources' logs."""
    record_faults: list[str] = field(default_factory=list)
    """The errors in the client's records."""
    breaches: list[str] = field(default_factory=list)
    """Rows that a reader needed and could not get, as the driver noted."""
    fenced_reads: list[str] = field(default_factory=list)
    """Frames of dead incarnations that a reader got."""
    overfull: list[str] = field(default_factory=list)
    """Instances above their memory (`SimulatedWorld`)."""
    mute: list[str] = field(default_factory=list)
    """Instances without a sign of life (`SimulatedWorld`)."""
    error: tuple[str, str, str] | None = None
    """The exception that ended the run: (type, message, where)."""
    faults: Counter[str] = field(default_factory=Counter)
    """How many faults of each kind took place."""
    coverage: Counter[str] = field(default_factory=Counter)
    """How often the run went through each counted situation."""
    digest: str = ""
    """The hash of all logged frames, if asked for."""


def observe(scenario: Scenario, with_digest: bool = False, spy: Callable[[Simulation], None] | None = None) -> Observation:
    """Run a scenario to its end. with_digest: hash every logged frame with its log and time; spy is called with the run
    before it begins."""
    simulation = Simulation(scenario, with_digest)
    if spy is not None:
        spy(simulation)
    try:
        simulation.go()
    except Exception as error:  # an exception of a machine is a finding, and does not end the simulator
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno} {last.name}"
        simulation.observed.error = (type(error).__name__, str(error), where)
    return simulation.finish()


class Simulation:
    """A run in progress."""

    def __init__(self, scenario: Scenario, with_digest: bool) -> None:
        plan = scenario.plan
        self.scenario = scenario
        self.observed = Observation(x_us_max=plan.delay_threshold_us)
        clock = ModelClock(scenario.copy_us)
        self.world = SimulatedWorld(
            plan,
            clock,
            MemoryLogStore(),
            SimulatedStore(),
            self._on_append,
            Conditions(scenario.limits, scenario.poll_frames, scenario.upload_us),
            scenario.step_rows,
            scenario.batch_us,
        )
        self.feeder = SourceFeeder(
            plan,
            scenario.feeds,
            scenario.start_us,
            scenario.stride,
            scenario.lag_us,
            scenario.jumps,
            scenario.stalls,
            scenario.loaded,
        )
        self.world.on_wake = self.feeder.wake
        self.saboteur = Saboteur(self.world, self.feeder, Random(scenario.seed))
        self.client = Client(plan, scenario.keeps_records)
        self.shown = LogId(plan.output.name, "r0", 0)
        self.sources = {edge.name for edge in plan.sources}
        self.events = 0
        self.is_over = False
        self.stable_at: dict[InstanceId, deque[tuple[int, int]]] = {}
        self.longest: dict[InstanceId, InstanceSpan] = {}
        self.healed_since: dict[InstanceId, int] = {}
        self.unfair_since: dict[tuple[InstanceId, InstanceId], int] = {}
        loses_messages = any(strike.kind == "control_loss" for strike in scenario.strikes)
        self.unfair_heartbeats = UNFAIR_HEARTBEATS + (CALM_BEATS if loses_messages else 0)
        self.digest = hashlib.sha256() if with_digest else None

    def go(self) -> None:
        world = self.world
        for who, skew_us in self.scenario.skews.items():
            world.processes[who].clock = partial(add, skew_us)
        for who, walls_us in self.scenario.walls.items():
            world.clocks[who] = MachineClock(world, world.processes[who], walls_us)
        world.network.slow += [LinkDelay(place, by_us) for place, by_us in self.scenario.hops_us]
        self.saboteur.plan(self.scenario.strikes)
        for at, who, replica in self.scenario.nears:
            world.at(at, partial(world.bring_near, who, replica))
        for who in world.processes:
            world.start(who)
        self.feeder.begin(world.append)
        self._tick_later()
        world.run(self._is_over)

    def finish(self) -> Observation:
        observed = self.observed
        observed.trailing = list(self.longest.values())
        for who in list(self.healed_since):
            self._note_corrected(who)
        observed.ended_at = self.world.now
        if self.client.keeps_records:
            observed.record_faults = list(faults_of_records(self.client.records, self.client.stable, observed.settled))
        observed.quiet_at = self.saboteur.quiet_at
        observed.states = [(e.at, e.who, e.what.state) for e in self.world.journal if isinstance(e.what, StateChanged)]
        observed.trimmed = sum(log.start for log in map(self.world.logs.open, self.feeder.next_ids))
        observed.breaches = list(self.world.breaches)
        observed.fenced_reads = self.world.fenced_reads
        observed.overfull = [f"{who}: {what}" for who, what in self.world.overfull.items()]
        observed.mute = [f"{who}: {what}" for who, what in self.world.mute.items()]
        observed.faults = self.saboteur.counts
        observed.coverage.update(self.world.counts)
        for engine in self.world.engines.values():
            observed.coverage.update(engine.counts)
        if self.digest is not None:
            observed.digest = self.digest.hexdigest()
        return observed

    # Time

    def _tick_later(self) -> None:
        self.world.at(self.world.now + self.scenario.plan.boundary_interval_us, self._tick)

    def _tick(self) -> None:
        now = self.world.now
        self.feeder.tick(now, self.world.append)
        self.observed.ticks.append((now, INFINITY if self.feeder.is_done else self.feeder.reached_us))
        self._look()
        if self.feeder.is_done:
            # At another moment in each interval: a machine may always be busy at the same moment of it.
            offset = len(self.observed.ticks) * 7_919 % self.scenario.plan.boundary_interval_us
            self.world.at(now + offset, self._maybe_end)
        self._tick_later()

    def _maybe_end(self) -> None:
        now = self.world.now
        if now < self.saboteur.quiet_at:
            return
        unsettled = [str(process.id) for process in self.world.processes.values() if not _is_settled(process)]
        self.observed.settled = not unsettled
        self.observed.unsettled = ", ".join(unsettled)
        since = max(self.saboteur.quiet_at, self.scenario.duration_us)
        self.is_over = not unsettled or now > since + PATIENCE_US + 4 * self.observed.x_us_max

    def _is_over(self) -> bool:
        self.events += 1
        if self.events > MOST_EVENTS:
            raise AssertionError(f"no end after {MOST_EVENTS} events")
        return self.is_over

    # Observations

    def _on_append(self, log: LogId, frame: Frame, now: int) -> None:
        if self.digest is not None:
            self.digest.update(f"{log} {now} ".encode() + encode(frame))
        if log.stream in self.sources:
            return
        self.observed.frames.setdefault(log, []).append((now, frame))
        if log == self.shown:
            self.client.take(frame, now)

    def _look(self) -> None:
        """Sample what frames do not show: alpha*X, X, and how far stable output trails (R16)."""
        observed = self.observed
        self.world.look_for_mute(self.scenario.pause_us)
        running = {who: process.instance for who, process in self.world.processes.items()}
        statuses = {who: instance.status() for who, instance in running.items() if instance is not None}
        self._look_at_shares(statuses)
        observed.x_us_max = max(observed.x_us_max, self.world.plan.delay_threshold_us)
        for who, process in self.world.processes.items():
            instance = process.instance
            if instance is None:
                self.stable_at.pop(who, None)
                self._note_corrected(who)
                continue
            status = statuses[who]
            observed.alpha_x_us = min(observed.alpha_x_us, status.alpha_x_us)
            is_hindered = process.is_frozen or status.state is State.RECOVERING
            if is_hindered:
                self.stable_at.pop(who, None)
            else:
                self._note_trailing(who, status.stable_through, status.position + instance.plan.bucket_us)
            is_waiting = is_hindered or status.is_engine_busy or self._is_turn_of_another(who)
            if is_waiting or not instance.can_correct(self.world.now):
                self._note_corrected(who)
            else:
                self.healed_since.setdefault(who, self.world.now)

    def _is_turn_of_another(self, who: InstanceId) -> bool:
        """Whether a partner corrects now (R22)."""
        return any(
            process.instance is not None and process.instance.state is State.STABILIZATION
            for other, process in self.world.processes.items()
            if other != who and (other.fragment, other.shard) == (who.fragment, who.shard)
        )

    def _note_trailing(self, who: InstanceId, stable: int, processed: int) -> None:
        """Note how long the input that an instance has not processed has been stable."""
        notes = self.stable_at.setdefault(who, deque())
        if not notes or stable > notes[-1][0]:
            notes.append((stable, self.world.now))
        while notes and notes[0][0] < processed:
            notes.popleft()
        longest = self.longest.get(who)
        if notes and (longest is None or self.world.now - notes[0][1] > longest.until_us - longest.since_us):
            self.longest[who] = InstanceSpan(who, notes[0][1], self.world.now)

    def _note_corrected(self, who: InstanceId) -> None:
        since = self.healed_since.pop(who, None)
        if since is not None:
            self.observed.hesitant.append(InstanceSpan(who, since, self.world.now))

    def _look_at_shares(self, statuses: Mapping[InstanceId, Status]) -> None:
        """Note an instance that has a larger alpha*X than its reader for several heartbeats. Only while nothing is cut off and
        both are STABLE, because measurements are sent with heartbeats."""
        now, unfair = self.world.now, {}
        most_us = self.unfair_heartbeats * self.world.plan.heartbeat_us
        for producer, reader, most, least in self._unfair(statuses) if not self.world.network.cuts else ():
            pair = producer, reader
            unfair[pair] = self.unfair_since.get(pair, now)
            if now - unfair[pair] > most_us and not self.observed.unfair:
                self.observed.unfair.append((producer, reader, most, least))
        self.unfair_since = unfair

    def _unfair(self, statuses: Mapping[InstanceId, Status]) -> Iterator[tuple[InstanceId, InstanceId, int, int]]:
        sharing = {who: status for who, status in statuses.items() if self._shares(who, status)}
        for who, status in sharing.items():
            reader = status.alpha_x_us
            for producer in dict.fromkeys(producer for entry in status.inputs for producer in entry.producers):
                held = sharing.get(producer)
                if held is None or self._completion_us(producer) != self._completion_us(who):
                    continue  # between them, a change of the plan's intervals is under way
                if held.alpha_x_us > max(reader, held.delay_threshold_us // 4) + UNFAIR_US:
                    yield producer, who, held.alpha_x_us, reader

    def _shares(self, who: InstanceId, status: Status) -> bool:
        """Whether an instance's alpha*X follows measurements now."""
        process = self.world.processes[who]
        is_measured = process.instance is not None and process.instance.plan.alpha_x_us is None
        return is_measured and not process.is_frozen and status.state is State.STABLE

    def _completion_us(self, who: InstanceId) -> int:
        instance = self.world.processes[who].instance
        return instance.plan.completion_us if instance is not None else 0


def _is_settled(process: Process) -> bool:
    if process.instance is None or process.is_busy or process.is_frozen:
        return False
    status = process.instance.status()
    return status.state is State.STABLE and status.position >= INFINITY and not status.is_engine_busy
