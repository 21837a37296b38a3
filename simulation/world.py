"""The world of the simulator: that of the embedded driver, with hooks to observe a run and to inject faults.

The instances, logs and links in it are production code. Times are run time in microseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import assert_never

from boreal.model.frames import Data, Frame, LogId
from boreal.query.plan import EGRESS, Plan
from embedded.world import Conditions, ModelClock, Process, World
from logs.checkpoints import StoreUnavailableError
from logs.log import LogStore
from reconcile.engine import HostFailed
from reconcile.events import (
    Acknowledge,
    Append,
    Effect,
    Event,
    Follow,
    Frames,
    InstanceId,
    Near,
    Obey,
    Read,
    ReadDone,
    Reconciled,
    Send,
    StateChanged,
    StoreCheckpoint,
    Unfollow,
    Wake,
    Watch,
)
from reconcile.links import links_of
from reconcile.recovery import VerifiedCheckpoint
from reconcile.remote import Unreachable
from simulation.clocks import MachineClock
from simulation.engine import RESTART_US, MicroBatches
from simulation.store import SimulatedStore

COPY_TRIES = 20
"""The number of further tries to fetch a copy of the state that a remote host has made. They are an upload time apart."""
STORE_RETRY_US = 50_000
"""The time between tries to store a checkpoint while the store cannot be reached, in microseconds."""


class SimulatedWorld(World):
    """A `World` that counts effects, and can stop a process between two effects.

    Each replica of the egress belongs to one site. So its plan names no other replica of the egress, and it shares no work with
    them (R28).

        on_work           called before a process handles an event (None: the start of its incarnation)
        on_effect         called after an effect was performed
        on_wake           called with a source stream and the time when its source gets a reader's request for boundaries (R24)
        counts            the number of effects and faults, by name
        longest_work_us   the longest work in one piece, in microseconds: a copy of the state
        overfull          the instances whose ports held more bytes than their memory allows, with the first such moment
        mute              the instances without a sign of life for longer than the silence timeout, though not dead or frozen
        wrote_at          when each instance last wrote a frame, or was last dead or frozen, in microseconds
        fenced_reads      frames of an earlier incarnation, written after the START of a later one, that a reader received
        clocks            the clock of each machine that has a separate one
        engines           the micro-batch engine of each instance whose operator host is in another process
    """

    def __init__(
        self,
        plan: Plan,
        clock: ModelClock,
        logs: LogStore,
        store: SimulatedStore,
        on_append: Callable[[LogId, Frame, int], None],
        conditions: Conditions,
        step_rows: int | None,
        batch_us: int,
    ) -> None:
        """As in `World`. step_rows: about how many rows one SUnion step may hold; None for the limit of the instances.
        batch_us: about how long a micro-batch of a remote operator host takes, in microseconds."""
        super().__init__(plan, clock, logs, store, on_append, conditions)
        self.store: SimulatedStore = store
        self.step_rows = step_rows
        self.on_work: list[Callable[[Process, Event | None], None]] = []
        self.on_effect: list[Callable[[Process, Effect], None]] = []
        self.on_wake: Callable[[str, int], None] = lambda stream, now: None
        self.counts: Counter[str] = Counter()
        self.longest_work_us = clock.copy_us
        self.overfull: dict[InstanceId, str] = {}
        self.mute: dict[InstanceId, str] = {}
        self.wrote_at: dict[InstanceId, int] = {}
        self.fenced_reads: list[str] = []
        self._fenced: dict[LogId, set[int]] = {}
        self._incarnations: dict[LogId, int] = {}
        self._dying: dict[InstanceId, Callable[[Process, list[Effect]], None]] = {}
        self._newest: dict[InstanceId, StoreCheckpoint] = {}
        self.clocks: dict[InstanceId, MachineClock] = {}
        self.engines: dict[InstanceId, MicroBatches] = {
            who: self._engine(who, batch_us)
            for who in self.processes
            if plan.fragment(who.fragment).engine_of(who.replica) != "native"
        }

    def _engine(self, who: InstanceId, batch_us: int) -> MicroBatches:
        return MicroBatches(
            self.plan.fragment(who.fragment),
            batch_us,
            Random(f"engine of {who}"),
            self._fetch,
            lambda: not self.store.outages,
            lambda delay, action: self.at(self.now + delay, action),
            lambda answered: self.deliver(who, answered),
        )

    def _fetch(self, owner: str, number: int) -> bytes:
        try:
            return self.store.get(owner, number).state
        except StoreUnavailableError as error:
            raise Unreachable(str(error)) from None

    def start(self, who: InstanceId) -> None:
        self._dying.pop(who, None)
        if who in self.clocks:
            self.clocks[who].begin()
        process, known = self.processes[who], len(self.breaches)
        super().start(who)
        if process.instance is None and self.store.outages:
            # The process exits, and its supervisor restarts it until the store can be reached. That is no breach.
            del self.breaches[known:]
            self.at(self.now + RESTART_US, lambda: self._start_again(process))

    def plan_of(self, who: InstanceId) -> Plan:
        if who.fragment != EGRESS:
            return self.plan
        alone = [replace(f, replicas=(who.replica,)) if f.name == EGRESS else f for f in self.plan.fragments]
        return replace(self.plan, fragments=tuple(alone))

    def append(self, log: LogId, frame: Frame) -> None:
        incarnation, newest = frame.origin.incarnation, self._incarnations.get(log, 0)
        if incarnation < newest:
            self._fenced.setdefault(log, set()).add(self.logs.open(log).end)
        self._incarnations[log] = max(incarnation, newest)
        super().append(log, frame)

    def bring_near(self, who: InstanceId, replica: int) -> None:
        """From now on a reader has the logs of this replica nearest; -1: of none."""
        process, name = self.processes[who], f"r{replica}"
        inputs = links_of(self.plan, self.plan.fragment(who.fragment), who, self.plan.silence_us)
        process.near = frozenset(c.log for link in inputs for c in link.upstream.candidates if c.log.replica == name)
        self.deliver(who, Near(process.near))

    def has_begun_after(self, who: InstanceId, incarnation: int) -> bool:
        """Whether an incarnation after this one has written its START."""
        return any(self._incarnations.get(log, 0) > incarnation for log in self.logs_of(who))

    def at_next_finish(self, who: InstanceId, strike: Callable[[Process, list[Effect]], None]) -> None:
        """Call `strike` with the process and its effects, instead of performing these, when the process has next finished work
        that appends several frames or gives an order to its host."""
        self._dying[who] = strike

    def work(self, process: Process, event: Event | None) -> None:
        if event is None and self.step_rows is not None:
            instance = process.instance
            assert instance is not None
            instance.sunion.settings = replace(instance.sunion.settings, step_rows=self.step_rows)
        if isinstance(event, Frames | ReadDone) and event.log in self._fenced:
            handed = sorted(self._fenced[event.log].intersection(offset for offset, _ in event.items))
            self.fenced_reads += [f"{process.id} was handed offset {offset} of {event.log}" for offset in handed]
        for tell in self.on_work:
            tell(process, event)
        try:
            super().work(process, event)
        except HostFailed:
            # The host has failed, so this incarnation ends. The supervisor begins another.
            self.counts["engine lost"] += 1
            self.crash(process.id)
            self.at(self.now + RESTART_US, lambda: self._start_again(process))
        self._look_at_memory(process, event)

    def _look_at_memory(self, process: Process, event: Event | None) -> None:
        """Note an instance that exceeds its memory. The rows of the event that it handles are added to the bound."""
        if process.instance is None:
            return
        held = process.instance.held_bytes
        memory = process.instance.plan.memory_bytes
        if held <= memory:
            return
        brought = 0
        if isinstance(event, Frames):
            brought = sum(frame.batch.nbytes for _, frame in event.items if isinstance(frame, Data))
        allowed = memory + brought
        if held > allowed:
            self.overfull.setdefault(process.id, f"{held} bytes at {self.now}, {allowed} allowed")

    def look_for_mute(self, pause_us: int) -> None:
        """Note the instances that are silent although nothing stops them. To be called often. pause_us: how much longer than
        usual they may be.

        An instance cannot write during a copy of its state, so the time of a copy is added to the silence timeout. One that is
        dragged writes at the end of a call: when a sign of life falls due, a call is running, and another event comes first.
        """
        for who, process in self.processes.items():
            most_us = self.plan.silence_us + pause_us + self.longest_work_us + 3 * process.drag_us
            if process.instance is None or process.is_frozen:
                self.wrote_at[who] = self.now
            elif self.now - self.wrote_at.get(who, self.now) > most_us:
                self.mute.setdefault(who, f"since {self.wrote_at[who]}, at {self.now}")

    def _ask_for_boundaries(self, process: Process, streams: tuple[str, ...]) -> None:
        at = self.now + self.network.latency(process.place)
        for stream in streams:
            if self.network.passes_messages(process.place, stream):
                self.at(at, partial(self.on_wake, stream, at))
                self.counts["Wake"] += 1

    def _start_again(self, process: Process) -> None:
        if process.instance is None:
            self.start(process.id)

    def finish(self, process: Process, incarnation: int, effects: list[Effect], event: Event | None) -> None:
        if self._dying and process.incarnation == incarnation and not process.is_frozen and process.id in self._dying:
            writes = sum(isinstance(effect, Append) for effect in effects) > 1
            if writes or any(isinstance(effect, Obey) for effect in effects):
                self._dying.pop(process.id)(process, effects)
                return
        super().finish(process, incarnation, effects, event)

    def _take_copy(self, process: Process, incarnation: int, effect: StoreCheckpoint, tries: int) -> None:
        """Store the copy of the state that a remote host has made, once it has arrived.

        A copy that does not arrive within `tries` further tries is not stored.
        """
        state = self.engines[process.id].copies.get(effect.number)
        if process.incarnation == incarnation and state is not None:
            self._newest[process.id] = taken = replace(effect, state=state)
            super().perform(process, taken)
        elif process.incarnation == incarnation and tries:
            self.at(self.now + self.conditions.upload_us, lambda: self._take_copy(process, incarnation, effect, tries - 1))

    def saved(self, who: InstanceId) -> VerifiedCheckpoint | None:
        """As in `World`. A store that cannot be reached counts as empty: the restart uses the logs alone (R19)."""
        return None if self.store.outages else super().saved(who)

    def stored(self, process: Process, incarnation: int, effect: StoreCheckpoint) -> None:
        """As in `World`. Tries again until the store accepts the checkpoint, or there is a newer one."""
        try:
            super().stored(process, incarnation, effect)
        except StoreUnavailableError:
            self.counts["checkpoints refused"] += 1
            if self._newest[process.id] is effect:
                self.at(self.now + STORE_RETRY_US, lambda: self.stored(process, incarnation, effect))

    def perform(self, process: Process, effect: Effect) -> None:
        match effect:  # the most frequent ones first
            case Append():
                super().perform(process, effect)
                self.wrote_at[process.id] = self.now
            case Obey(place, order):
                self.engines[process.id].give(place, order)
            case StoreCheckpoint(state=None):
                self._take_copy(process, process.incarnation, effect, COPY_TRIES)
            case StoreCheckpoint():
                self._newest[process.id] = effect
                super().perform(process, effect)
            case Send(_, message):
                super().perform(process, effect)
                self.counts[type(message).__name__] += 1
            case Follow() | Read():
                super().perform(process, effect)
                self.counts[type(effect).__name__] += 1
            case Wake(streams):
                self._ask_for_boundaries(process, streams)
            case Unfollow() | Watch() | Acknowledge() | StateChanged() | Reconciled():
                super().perform(process, effect)
            case _:
                assert_never(effect)
        for tell in self.on_effect:
            tell(process, effect)
