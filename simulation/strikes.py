"""The faults of a simulated run: strikes as plain data, and the saboteur that carries them out.

A strike lasts from at_us to at_us + for_us. Strikes that stop an instance are counted, so that overlapping ones heal with the
last of them. Some strikes lie in wait: they act on the first event of their kind in their span, such as the start of
STABILIZATION or a lease request, and last for `for_us` from then on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from boreal.model.frames import Boundary, Data, State
from embedded.network import LinkCut, LinkDelay
from embedded.world import Process
from reconcile.events import (
    Append,
    Effect,
    InstanceId,
    LeaseGrant,
    LeaseRequest,
    Obey,
    Send,
    StateChanged,
    Threshold,
)
from simulation.feed import SourceFeeder
from simulation.world import SimulatedWorld


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault.

    Kinds, with the fields that they use: cut_stream, cut_stream_to_replica, cut_replica, control_loss, partition (place,
    other); slow (amount: by how many microseconds); crash, crash_losing_checkpoint, crash_midway (amount: per mille of the
    effects of a piece of work that still take place), zombie (as crash_midway, but the lost frames are written after the next
    incarnation has begun), freeze (who); resend (who; amount: frames); damage_checkpoint (who); threshold (amount: the new X;
    changes: what follows from it); on_stabilization, on_lease_request and on_lease_grant (amount 0: the sender, 1: the
    receiver) crash that instance.
    cut_one_way (what place sends to other does not arrive); restart_source (place; amount 1: the incarnation before writes
    on); pause (all sources and instances are stopped); replan (changes: of the plan; all instances are started with it, one
    after another). store_away; store_wipe (it comes back empty); drag (who; amount: microseconds more for each piece of
    work). Of the job that runs an instance's operators (who): engine_worker, engine_crash (amount: per mille of the batch's
    answers that are out before), engine_forget, engine_wipe, engine_twin; engine_on_stabilization is an engine_crash that
    lies in wait.
    """

    kind: str
    """One of the above."""
    at_us: int
    """When it begins, in run time."""
    for_us: int = 0
    """How long it lasts."""
    place: str = ""
    """A place in the network, such as 'a' or 'main.r0'."""
    other: str = "*"
    """Another place; "*" for all."""
    who: InstanceId | None = None
    """The instance that it strikes."""
    amount: int = 0
    """Its meaning depends on the kind."""
    changes: tuple[tuple[str, Any], ...] = ()
    """(field, new value) of the plan."""

    @property
    def end_us(self) -> int:
        return self.at_us + self.for_us


WAITING = ("on_stabilization", "on_lease_request", "on_lease_grant", "engine_on_stabilization")
REPLAN_TURN_US, REPLAN_DOWN_US = 250_000, 60_000
"""The time from the restart of one instance to that of the next one, and the duration of each."""
LATE_US = 2_000
"""How long after its successor's start a zombie writes."""
WAITING_SPAN_US = 3_000_000
"""How long a strike lies in wait."""


@dataclass
class Saboteur:
    """Carries out strikes in a world."""

    world: SimulatedWorld
    """The world that it strikes."""
    feeder: SourceFeeder
    """The sources."""
    rng: Random
    """For choices at the time of a strike."""
    counts: Counter[str] = field(default_factory=Counter)
    """How many strikes of each kind took place."""
    quiet_at: int = 0
    """When the last strike has healed."""
    _down_until: dict[InstanceId, int] = field(default_factory=dict)
    _frozen_until: dict[InstanceId, int] = field(default_factory=dict)
    _waiting: list[Strike] = field(default_factory=list)

    def plan(self, strikes: tuple[Strike, ...]) -> None:
        """Schedule the strikes."""
        self.world.on_effect.append(self._lie_in_wait)
        for strike in strikes:
            self.quiet_at = max(self.quiet_at, strike.end_us)
            if strike.kind in WAITING:
                self._waiting.append(strike)
            else:
                self.world.at(strike.at_us, lambda strike=strike: self._strike(strike))  # type: ignore[misc]

    def _strike(self, strike: Strike) -> None:
        self.counts[strike.kind] += 1
        network = self.world.network
        match strike.kind:
            case "cut_stream" | "cut_stream_to_replica" | "cut_replica" | "partition":
                self._hold(network.cuts, LinkCut(strike.place, strike.other), strike)
            case "control_loss":
                self._hold(network.cuts, LinkCut(strike.place, strike.other, control_only=True), strike)
            case "cut_one_way":
                self._hold(network.cuts, LinkCut(strike.place, strike.other, one_way=True), strike)
            case "restart_source":
                self._restart_source(strike)
            case "pause":
                self._pause(strike)
            case "replan":
                self._replan(strike)
            case "slow":
                self._hold(network.slow, LinkDelay(strike.place, strike.amount), strike)
            case "threshold":
                self._set_threshold(strike)
            case "store_away" | "store_wipe":
                self._take_store_away(strike)
            case _:
                assert strike.who is not None, f"{strike.kind} needs a target"
                self._strike_instance(strike, strike.who)

    def _hold(self, rules: list, rule: LinkCut | LinkDelay, strike: Strike) -> None:  # type: ignore[type-arg]
        rules.append(rule)
        self.world.at(strike.end_us, lambda: self._release(rules, rule))

    def _release(self, rules: list, rule: LinkCut | LinkDelay) -> None:  # type: ignore[type-arg]
        rules.remove(rule)
        self.world.links_changed()

    def _set_threshold(self, strike: Strike) -> None:
        """A new X, and a heartbeat that follows it. The streams go on at the interval at which they were drawn."""
        world = self.world
        world.plan = replace(world.plan, delay_threshold_us=strike.amount, **dict(strike.changes))
        for who in world.processes:
            world.deliver(who, Threshold.of(world.plan))

    # Strikes on the whole query

    def _restart_source(self, strike: Strike) -> None:
        def come_back() -> None:
            self.feeder.come_back(strike.place, self.world.append)
            if strike.amount and not self.feeder.absences[strike.place]:
                self.feeder.write_late(strike.place, self.world.now, self.world.append)

        self.feeder.leave(strike.place)
        self.world.at(strike.end_us, come_back)

    def _pause(self, strike: Strike) -> None:
        def come_back() -> None:
            for stream in self.feeder.feeds:
                self.feeder.come_back(stream, self.world.append)

        for stream in self.feeder.feeds:
            self.feeder.leave(stream)
        self.world.at(strike.end_us, come_back)
        for who in self.world.processes:
            self._crash(who, strike.end_us)

    def _replan(self, strike: Strike) -> None:
        """Instances that start from now on have the changed plan; all are restarted, replica by replica."""
        world = self.world
        world.plan = replace(world.plan, **dict(strike.changes))
        in_turn = sorted(world.processes, key=lambda who: who.replica)
        for place, who in enumerate(in_turn):
            at = world.now + place * REPLAN_TURN_US
            self.quiet_at = max(self.quiet_at, at + REPLAN_DOWN_US)
            world.at(at, lambda who=who, until=at + REPLAN_DOWN_US: self._crash(who, until))  # type: ignore[misc]

    def _take_store_away(self, strike: Strike) -> None:
        store = self.world.store

        def come_back() -> None:
            store.outages -= 1
            if strike.kind == "store_wipe":
                store.blobs.clear()
                for engine in self.world.engines.values():
                    engine.lose_snapshots()

        store.outages += 1
        self.world.at(strike.end_us, come_back)

    def _drag(self, process: Process, strike: Strike) -> None:
        def end() -> None:
            process.drag_us -= strike.amount

        process.drag_us += strike.amount
        self.world.at(strike.end_us, end)

    def _strike_instance(self, strike: Strike, who: InstanceId) -> None:
        world = self.world
        match strike.kind:
            case "crash" | "crash_losing_checkpoint":
                self._crash(who, strike.end_us, losing_checkpoint=strike.kind != "crash")
            case "crash_midway" | "zombie":
                world.at_next_finish(who, lambda process, effects: self._crash_midway(process, effects, strike))
            case "freeze":
                self._frozen_until[who] = max(self._frozen_until.get(who, 0), strike.end_us)
                world.freeze(who)
                world.at(strike.end_us, lambda: self._thaw(who))
            case "resend":
                self._resend(world.processes[who], strike.amount)
            case "damage_checkpoint":
                self._damage(who)
            case "drag":
                self._drag(world.processes[who], strike)
            case "engine_worker":
                world.engines[who].lose_worker()
            case "engine_crash":
                world.engines[who].crash(strike.amount, strike.for_us)
            case "engine_forget":
                world.engines[who].forget(strike.for_us)
            case "engine_wipe":
                world.engines[who].wipe(strike.for_us)
            case "engine_twin":
                world.engines[who].run_twin()
            case _:
                raise AssertionError(f"unknown strike {strike.kind}")

    # Strikes on an instance

    def _crash(self, who: InstanceId, until: int, losing_checkpoint: bool = False) -> None:
        self._down_until[who] = max(self._down_until.get(who, 0), until)
        self.quiet_at = max(self.quiet_at, until)
        self.world.crash(who, losing_checkpoint)
        self.world.at(until, lambda: self._start(who))

    def _start(self, who: InstanceId) -> None:
        if self.world.now >= self._down_until[who] and self.world.processes[who].instance is None:
            self.world.start(who)

    def _thaw(self, who: InstanceId) -> None:
        if self.world.now >= self._frozen_until[who]:
            self.world.thaw(who)

    def _crash_midway(self, process: Process, effects: list[Effect], strike: Strike) -> None:
        """Perform the first effects of a piece of work, then crash the process."""
        assert process.instance is not None
        kept, incarnation = len(effects) * strike.amount // 1000, process.instance.status().incarnation
        for effect in effects[:kept]:
            self.world.perform(process, effect)
        until = max(self.world.now, strike.end_us)
        self._crash(process.id, until)
        if strike.kind == "zombie":
            lost = [effect for effect in effects[kept:] if isinstance(effect, Append | Obey)]
            self.world.at(until + LATE_US, lambda: self._write_late(process, incarnation, lost))

    def _write_late(self, process: Process, incarnation: int, lost: list[Append | Obey]) -> None:
        """Write the lost frames once the next incarnation has begun: its writer would notice frames before its START (R25)."""
        if not self.world.has_begun_after(process.id, incarnation):
            self.world.at(self.world.now + LATE_US, lambda: self._write_late(process, incarnation, lost))
            return
        self.counts["zombie_frames"] += len(lost)
        for effect in lost:
            self.world.perform(process, effect)

    def _damage(self, who: InstanceId) -> None:
        """Flip a bit of the newest checkpoint in the store."""
        blobs = self.world.store.blobs.get(str(who), {})
        for number in sorted(blobs)[-1:]:
            blob = bytearray(blobs[number])
            blob[self.rng.randrange(len(blob))] ^= 16
            blobs[number] = bytes(blob)

    def _resend(self, process: Process, most: int) -> None:
        """Repeat frames to a reader, as after a reconnect: only stable ones, without others in between."""
        for reader in list(process.readers.values()):
            log = self.world.logs.open(reader.log)
            if reader.offset is None or reader.offset <= log.start:
                continue
            since = max(log.start, reader.offset - most)
            place = reader.offset
            for offset, frame in reversed(log.read(since, reader.offset - since)):
                if not isinstance(frame, Data | Boundary) or frame.tentative:
                    break
                place = offset
            if place < reader.offset:
                self.counts["frames_sent_again"] += reader.offset - place
                reader.offset = place
                self.world.poll_later(process, reader)

    # Strikes that lie in wait

    def _lie_in_wait(self, process: Process, effect: Effect) -> None:
        if not self._waiting:
            return
        match effect:
            case StateChanged(State.STABILIZATION):
                self._spring("on_stabilization", [process.id])
                if process.id in self.world.engines:
                    self._spring("engine_on_stabilization", [process.id])
            case Send(to, LeaseRequest()):
                self._spring("on_lease_request", [process.id, to])
            case Send(to, LeaseGrant()):
                self._spring("on_lease_grant", [process.id, to])
            case _:
                pass

    def _spring(self, kind: str, choice: list[InstanceId]) -> None:
        now = self.world.now
        ready = [s for s in self._waiting if s.kind == kind and s.at_us <= now <= s.at_us + WAITING_SPAN_US]
        if not ready:
            return
        strike = ready[0]
        self._waiting.remove(strike)
        self.counts[kind] += 1
        who = choice[strike.amount % len(choice)]
        # Sometimes at once, sometimes while a message is on its way, sometimes after it has arrived.
        at = now + self.rng.choice((0, 500, 1_500, 20_000))
        self.quiet_at = max(self.quiet_at, at + strike.for_us)
        if kind == "engine_on_stabilization":
            self.world.at(at, lambda: self.world.engines[who].crash(self.rng.choice((0, 500, 1000)), strike.for_us))
        else:
            self.world.at(at, lambda: self._crash(who, at + strike.for_us))

