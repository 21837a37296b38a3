"""The embedded driver's world, with places for the simulator to look and to strike. What runs in it is production code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from boreal.model.frames import Data, Frame, LogId
from boreal.query.plan import EGRESS, Plan
from embedded.world import POLL_FRAMES, ModelClock, Process, World
from logs.checkpoints import StoreUnavailableError
from logs.log import LogStore
from reconcile.engine import HostFailed
from reconcile.events import (
    Append,
    Effect,
    Event,
    Follow,
    Frames,
    InstanceId,
    Obey,
    Read,
    ReadDone,
    Send,
    StoreCheckpoint,
)
from reconcile.limits import PRODUCTION, Limits
from reconcile.recovery import Saved
from reconcile.remote import Unreachable
from simulation.clocks import MachineClock
from simulation.engine import RESTART_US, MicroBatches
from simulation.store import SimulatedStore

COPY_TRIES = 20
STORE_RETRY_US = 50_000


class SimulatedWorld(World):
    """A `World` that counts effects, stops a process between two effects, and holds back those of a frozen one.

    fenced_reads: frames that a dead life wrote after its successor's START, and that a reader was handed all the same.
    overfull: who held more in its ports than its memory allows, when first; mute: who gave no sign of life for longer than
    counts as silence, though it was neither dead nor frozen.
    step_rows: about how many rows one SUnion step may hold, None for the instances' own choice. on_work is told of every
    event that a process takes up (None: its begin), on_effect of every effect after it took place. batch_us: how long a
    micro-batch takes of those hosts that are not beside their instances. Each replica of the egress is a site's: it shares
    its work with no other (R28).
    """

    def __init__(
        self,
        plan: Plan,
        clock: ModelClock,
        logs: LogStore,
        store: SimulatedStore,
        on_append: Callable[[LogId, Frame, int], None],
        step_rows: int | None,
        batch_us: int = 0,
        limits: Limits = PRODUCTION,
        poll_frames: int = POLL_FRAMES,
    ) -> None:
        super().__init__(plan, clock, logs, store, on_append, limits, poll_frames)
        self.store: SimulatedStore = store
        self.step_rows = step_rows
        self.on_work: list[Callable[[Process, Event | None], None]] = []
        self.on_effect: list[Callable[[Process, Effect], None]] = []
        self.counts: Counter[str] = Counter()
        self.longest_work_us = clock.copy_us
        self.overfull: dict[InstanceId, str] = {}
        self.mute: dict[InstanceId, str] = {}
        self.wrote_at: dict[InstanceId, int] = {}
        self.fenced_reads: list[str] = []
        self._fenced: dict[LogId, set[int]] = {}
        self._lives: dict[LogId, int] = {}
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
            # It ends, and its supervisor begins it again and again, until the store can be asked.
            del self.breaches[known:]
            self.at(self.now + RESTART_US, lambda: self._start_again(process))

    def plan_of(self, who: InstanceId) -> Plan:
        if who.fragment != EGRESS:
            return self.plan
        alone = [replace(f, replicas=(who.replica,)) if f.name == EGRESS else f for f in self.plan.fragments]
        return replace(self.plan, fragments=tuple(alone))

    def append(self, log: LogId, frame: Frame) -> None:
        incarnation, newest = frame.origin.incarnation, self._lives.get(log, 0)
        if incarnation < newest:
            self._fenced.setdefault(log, set()).add(self.logs.open(log).end)
        self._lives[log] = max(incarnation, newest)
        super().append(log, frame)

    def has_begun_after(self, who: InstanceId, life: int) -> bool:
        """Whether a later life has written its START."""
        return any(self._lives.get(log, 0) > life for log in self._logs_of(who))

    def at_next_finish(self, who: InstanceId, strike: Callable[[Process, list[Effect]], None]) -> None:
        """When the process has next done a piece of work that writes several frames, or gives an order, `strike` takes its
        effects' place."""
        self._dying[who] = strike

    def perform(self, process: Process, effect: Effect) -> None:
        """Let one effect take place."""
        self._perform(process, effect)

    def poll_later(self, process: Process, reader: Any) -> None:
        """Let a reader look for frames at its offset."""
        self._poll_later(process, reader)

    def _work(self, process: Process, event: Event | None) -> None:
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
            super()._work(process, event)
        except HostFailed:
            # This life is over; its supervisor begins another.
            self.counts["engine lost"] += 1
            self.crash(process.id)
            self.at(self.now + RESTART_US, lambda: self._start_again(process))
        self._look_at_memory(process, event)

    def _look_at_memory(self, process: Process, event: Event | None) -> None:
        """What a port caches of its stream is bounded; what one event brings may come on top, until it is looked at."""
        if process.instance is None:
            return
        held = sum(link.port.tape.nbytes for link in process.instance.links)
        if held <= self.plan.memory_bytes:
            return
        brought = 0
        if isinstance(event, Frames):
            brought = sum(frame.batch.nbytes for _, frame in event.items if isinstance(frame, Data))
        allowed = self.plan.memory_bytes + brought
        if held > allowed:
            self.overfull.setdefault(process.id, f"{held} bytes at {self.now}, {allowed} allowed")

    def look_for_mute(self) -> None:
        """To be called often: note who is silent, though nothing stops it. Nobody is heard in the midst of a copy."""
        for who, process in self.processes.items():
            if process.instance is None or process.is_frozen:
                self.wrote_at[who] = self.now
            elif self.now - self.wrote_at.get(who, self.now) > self.plan.silence_us + self.longest_work_us:
                self.mute.setdefault(who, f"since {self.wrote_at[who]}, at {self.now}")

    def _start_again(self, process: Process) -> None:
        if process.instance is None:
            self.start(process.id)

    def _finish(self, process: Process, life: int, effects: list[Effect], event: Event | None) -> None:
        if self._dying and process.life == life and not process.is_frozen and process.id in self._dying:
            writes = sum(isinstance(effect, Append) for effect in effects) > 1
            if writes or any(isinstance(effect, Obey) for effect in effects):
                self._dying.pop(process.id)(process, effects)
                return
        super()._finish(process, life, effects, event)

    def _take_copy(self, process: Process, life: int, effect: StoreCheckpoint, tries: int) -> None:
        """The copy that a host elsewhere has made becomes a checkpoint once it is there; one that does not come is absent."""
        state = self.engines[process.id].copies.get(effect.number)
        if process.life == life and state is not None:
            self._newest[process.id] = taken = replace(effect, state=state)
            super()._perform(process, taken)
        elif process.life == life and tries:
            self.at(self.now + self.upload_us, lambda: self._take_copy(process, life, effect, tries - 1))

    def _saved(self, who: InstanceId) -> Saved | None:
        """Out of reach, it is as good as empty: the logs serve (R19)."""
        return None if self.store.outages else super()._saved(who)

    def _stored(self, process: Process, life: int, effect: StoreCheckpoint) -> None:
        """Tried until the store takes it, or there is a newer one."""
        try:
            super()._stored(process, life, effect)
        except StoreUnavailableError:
            self.counts["checkpoints refused"] += 1
            if self._newest[process.id] is effect:
                self.at(self.now + STORE_RETRY_US, lambda: self._stored(process, life, effect))

    def _perform(self, process: Process, effect: Effect) -> None:
        match effect:
            case Obey(place, order):
                self.engines[process.id].give(place, order)
            case StoreCheckpoint(state=None):
                self._take_copy(process, process.life, effect, COPY_TRIES)
            case StoreCheckpoint():
                self._newest[process.id] = effect
                super()._perform(process, effect)
            case _:
                super()._perform(process, effect)
        if isinstance(effect, Append):
            self.wrote_at[process.id] = self.now
        match effect:
            case Send(_, message):
                self.counts[type(message).__name__] += 1
            case Follow() | Read():
                self.counts[type(effect).__name__] += 1
            case _:
                pass
        for tell in self.on_effect:
            tell(process, effect)
