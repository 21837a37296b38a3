"""Seeded bugs: each breaks one rule of the production objects, to show that the simulator would notice.

A mutant is applied for the time of one run, by replacing methods; the run without failures, which is the measure, is made
without it. docs/mutants.md names the first seed that catches each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from boreal.errors import UserError
from boreal.frames import INFINITY, Boundary, Data, Start
from boreal.spec import Mode, did_you_mean
from operators.graph import GraphState
from reconcile.claims import Claims
from reconcile.engine import Engine, nothing_follows
from reconcile.events import LeaseGrant, Send
from reconcile.host import Host
from reconcile.instance import Instance
from reconcile.links import Link
from reconcile.orders import Answer, Begin, Place, RollBack, decode_order, encode_answer
from reconcile.remote import OrderedHost, RemoteHost
from reconcile.soutput import SOutput
from reconcile.stagger import Permission, Stagger, _Promise
from reconcile.strategy import Strategy
from reconcile.upstream import Upstream
from services.clock import SharedClock
from services.embedded.world import World
from services.log.index import Index
from sunion.port import Port
from sunion.sunion import Healed, SUnion
from sunion.tape import Cursor, Tape

Patch = Callable[[type, str, Callable[[Any], Any]], None]
"""patch(owner, name, make): `owner.name` becomes make(what it was)."""


@dataclass(frozen=True)
class Mutant:
    """One seeded bug. prose: what it forgets, in a sentence."""

    name: str
    prose: str
    apply: Callable[[Patch], None]


MUTANTS: dict[str, Mutant] = {}


def _mutant(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
    assert apply.__doc__ is not None
    MUTANTS[apply.__name__] = Mutant(apply.__name__, " ".join(apply.__doc__.split()), apply)
    return apply


@contextmanager
def mutated(name: str | None) -> Iterator[None]:
    """The production objects with the named bug, None for none; UserError for an unknown name."""
    if name is None:
        yield
        return
    if name not in MUTANTS:
        raise UserError("--mutant", name, "there is no such mutant", did_you_mean(name, MUTANTS))
    undo: list[tuple[type, str, Any]] = []

    def patch(owner: type, attribute: str, make: Callable[[Any], Any]) -> None:
        original = owner.__dict__[attribute]
        undo.append((owner, attribute, original))
        setattr(owner, attribute, make(original))

    try:
        MUTANTS[name].apply(patch)
        yield
    finally:
        for owner, attribute, original in reversed(undo):
            setattr(owner, attribute, original)


# SUnion: order, buckets, deadlines.


@_mutant
def order_by_arrival(patch: Patch) -> None:
    """SUnion hands on the rows of its ports as they came, and not by (time, port, id)."""

    def make(_: Any) -> Any:
        def merge(self: SUnion, merge: Any, taken: Any) -> Any:
            batches = [batch for at in merge.ports for batch in taken[at].batches]
            return pa.concat_batches(batches) if batches else self._empty[merge.name]

        return merge

    patch(SUnion, "_merge", make)


@_mutant
def emit_tentative_before_alpha_x(patch: Patch) -> None:
    """A bucket is overdue as soon as it has arrived: nothing is held back for alpha*X."""
    patch(SUnion, "_overdue_at", lambda _: lambda self, ingest, not_before: not_before)


@_mutant
def count_the_deadline_at_every_hop(patch: Patch) -> None:
    """A bucket's deadline counts from its arrival at each SUnion, and no longer from ingest: X adds up along a chain."""

    def make(original: Any) -> Any:
        def overdue_at(self: SUnion, ingest: int, not_before: int) -> int:
            return max(int(original(self, ingest, not_before)), not_before + self.alpha_x_us)

        return overdue_at

    patch(SUnion, "_overdue_at", make)


@_mutant
def wait_for_the_missing(patch: Patch) -> None:
    """SUnion never gives up on a port: policy `process` acts as suspend."""
    patch(SUnion, "_tentative_items", lambda _: lambda self, now: [])


@_mutant
def close_a_bucket_too_early(patch: Patch) -> None:
    """A bucket counts as stable once the first port, and not every port, has its stable boundary past it."""

    def make(original: Any) -> Any:
        def stable_step(self: SUnion) -> Any:
            through = self._floor(max(port.tape.boundary for port in self.ports))
            if len(self.ports) == 1 or through <= self.base.position or through >= INFINITY:
                return original(self)
            return self._step(self.base, through, tentative=False)

        return stable_step

    patch(SUnion, "_stable_step", make)


@_mutant
def forget_the_mark(patch: Patch) -> None:
    """At ROLLBACK SUnion goes on from where the tentative branch was, and not from the mark."""

    def make(original: Any) -> Any:
        def roll_back(self: SUnion, replay_from: int, keep_live: bool) -> Any:
            assert self.live is not None
            position, cursors = self.live.position, [cursor.fork() for cursor in self.live.cursors]
            order = original(self, replay_from, keep_live)
            self.base.position, self.base.cursors = position, cursors
            return order

        return roll_back

    patch(SUnion, "roll_back", make)


@_mutant
def redo_without_one_port(patch: Patch) -> None:
    """The redo takes the first port's rows from where it stands now, and not from the mark."""

    def make(original: Any) -> Any:
        def roll_back(self: SUnion, replay_from: int, keep_live: bool) -> Any:
            order = original(self, replay_from, keep_live)
            self.base.cursors[0] = Cursor(self.ports[0].tape.next_id)
            return order

        return roll_back

    patch(SUnion, "roll_back", make)


@_mutant
def heal_too_early(patch: Patch) -> None:
    """A failure counts as healed as soon as any bucket can be corrected, again and again."""

    def make(_: Any) -> Any:
        def healed(self: SUnion, *_: int) -> Healed | None:
            return None if self.live is None or self.redoing else Healed.FULL

        return healed

    patch(SUnion, "healed", make)


@_mutant
def heal_never_in_part(patch: Patch) -> None:
    """Only a full heal is acted on (R16): rolling failures starve stable output."""

    def make(original: Any) -> Any:
        def healed(self: SUnion, *place: int) -> Healed | None:
            found = original(self, *place)
            return found if found is Healed.FULL else None

        return healed

    patch(SUnion, "healed", make)


@_mutant
def mute_nothing_on_rebuild(patch: Patch) -> None:
    """Steps that only rebuild state have their output written."""

    def make(original: Any) -> Any:
        def step(self: SUnion, view: Any, through: int, tentative: bool) -> Any:
            return replace(original(self, view, through, tentative), muted=False)

        return step

    patch(SUnion, "_step", make)


@_mutant
def forget_replay_after_spill(patch: Patch) -> None:
    """What memory had to let go is not read again from the log."""
    patch(Cursor, "is_joined", lambda _: lambda self, tape: True)


@_mutant
def let_the_replay_boundary_run_ahead(patch: Patch) -> None:
    """Boundaries of a replay count before the rows under them were taken."""

    def make(original: Any) -> Any:
        def take_replayed(self: Cursor, tape: Tape, first_id: int, batch: Any, ingest: Any) -> None:
            original(self, tape, first_id, batch, ingest)
            self.replay_boundary = max(self.replay_boundary, tape.boundary)

        return take_replayed

    patch(Cursor, "take_replayed", make)


@_mutant
def drop_rows_that_come_in_a_correction(patch: Patch) -> None:
    """A port forgets the stable rows that it is given while the instance reconciles."""

    def make(original: Any) -> Any:
        def take_visible(self: Instance, link: Any, candidate: Any, frame: Any, now: int) -> None:
            if self.sunion.redoing and isinstance(frame, Data) and not frame.tentative:
                link.port.tape.next_id = max(link.port.tape.next_id, frame.first_id + frame.batch.num_rows)
                return
            original(self, link, candidate, frame, now)

        return take_visible

    patch(Instance, "_take_visible", make)


# Ports and switching.


@_mutant
def repeat_after_switch(patch: Patch) -> None:
    """A port takes stable rows again that it already has."""

    def make(original: Any) -> Any:
        def append(self: Tape, first_id: int, batch: Any, ingest: Any) -> Any:
            return original(self, max(first_id, self.next_id), batch, ingest)

        return append

    patch(Tape, "append", make)


@_mutant
def repeat_tentative_after_switch(patch: Patch) -> None:
    """After a switch to another replica, tentative buckets that were handed on already are handed on again (R23)."""

    def make(original: Any) -> Any:
        def look_at_inputs(self: Instance, now: int, effects: list[Any]) -> None:
            before = [link.upstream.live.log for link in self.links]
            original(self, now, effects)
            if self.sunion.live is not None and before != [link.upstream.live.log for link in self.links]:
                self.sunion.live = self.sunion.base.fork()

        return look_at_inputs

    patch(Instance, "_look_at_inputs", make)


@_mutant
def follow_one_row_too_late(patch: Patch) -> None:
    """A reader that switches follows the new log from one row after the next that it needs."""

    def make(original: Any) -> Any:
        return lambda self, now, last_id: original(self, now, last_id + 1)

    patch(Upstream, "choose", make)


@_mutant
def lose_the_live_tuples(patch: Patch) -> None:
    """Tentative rows of an upstream replica are thrown away: the reader answers without them."""
    patch(Port, "take_tentative", lambda _: lambda self, frame, now: None)


@_mutant
def keep_suffix_after_undo(patch: Patch) -> None:
    """The tentative rows of a port outlast their UNDO, and leave again among the corrections."""

    def keep(original: Any) -> Any:
        def take_boundary(self: Port, frame: Any, now: int) -> None:
            suffix, nbytes = list(self.suffix), self.suffix_nbytes
            original(self, frame, now)
            self.suffix, self.suffix_nbytes = suffix, nbytes

        return take_boundary

    def make(original: Any) -> Any:
        def take(self: SUnion, view: Any, at: int, since: int, upto: int, tentative: bool) -> Any:
            taken = original(self, view, at, since, upto, tentative)
            for chunk in () if tentative else self.ports[at].suffix:
                taken.add(chunk.between(since, upto), False, chunk.ingest)
            return taken

        return take

    patch(Port, "revoke", lambda _: lambda self: None)
    patch(Port, "take_boundary", keep)
    patch(SUnion, "_take", make)


@_mutant
def take_tentative_as_stable(patch: Patch) -> None:
    """A tentative boundary counts as a stable one."""

    def make(original: Any) -> Any:
        return lambda self, frame, now: original(self, replace(frame, tentative=False), now)

    patch(Port, "take_boundary", make)


@_mutant
def never_switch(patch: Patch) -> None:
    """A reader stays with the replica that it began with."""
    patch(Upstream, "choose", lambda _: lambda self, now, last_id: (False, []))


@_mutant
def believe_a_silent_replica(patch: Patch) -> None:
    """Silence of an input is not noticed: a dead replica ranks by the last state that it told."""

    def make(original: Any) -> Any:
        def rank(self: Upstream, candidate: Any, now: int) -> Any:
            return original(self, candidate, candidate.seen)

        return rank

    patch(Upstream, "rank", make)


@_mutant
def ignore_fencing(patch: Patch) -> None:
    """Frames that a dead incarnation wrote after its successor's START are taken as any others (R25)."""

    def make(original: Any) -> Any:
        def add(self: Index, frame: Any) -> int:
            if not isinstance(frame, Start) and frame.origin.incarnation < self.incarnation:
                frame = replace(frame, origin=replace(frame.origin, incarnation=self.incarnation))
            return int(original(self, frame))

        return add

    def hear(original: Any) -> Any:
        def always(self: Upstream, candidate: Any, frame: Any, now: int) -> bool:
            original(self, candidate, frame, now)
            return True

        return always

    patch(Index, "add", make)
    patch(Upstream, "hear", hear)


@_mutant
def reuse_the_incarnation(patch: Patch) -> None:
    """A new life writes under the number of the life before (R25)."""

    def make(original: Any) -> Any:
        def restarts(self: World, process: Any) -> Any:
            for place in original(self, process):
                yield replace(place, incarnation=max(place.incarnation - 1, 1))

        return restarts

    patch(World, "_restarts", make)


# The operator host.


@_mutant
def restore_wrong_checkpoint(patch: Patch) -> None:
    """ROLLBACK restores an empty state instead of the copy that was made at MARK."""

    def make(original: Any) -> Any:
        def roll_back(self: Host, keep_live: bool) -> None:
            original(self, keep_live)
            if self.mode is Mode.CHECKPOINT_REDO:
                self.state = self.graph.empty()

        return roll_back

    patch(Host, "roll_back", make)


@_mutant
def go_on_from_the_tentative_state(patch: Patch) -> None:
    """ROLLBACK leaves the state as the tentative steps have made it."""

    def make(original: Any) -> Any:
        def roll_back(self: Host, keep_live: bool) -> None:
            state = self.live or self.state
            original(self, keep_live)
            if self.mode is Mode.CHECKPOINT_REDO:
                self.state = state

        return roll_back

    patch(Host, "roll_back", make)


@_mutant
def overlay_leaks_into_base(patch: Patch) -> None:
    """Tentative steps write to the state itself, and not to an overlay."""
    patch(GraphState, "overlay", lambda _: lambda self: self)
    patch(GraphState, "absorb", lambda _: lambda self, child: None)


@_mutant
def rebuild_from_the_mark_only(patch: Patch) -> None:
    """undo_redo rebuilds state from the mark on, and forgets what was in open windows before it (R20)."""

    def make(original: Any) -> Any:
        def replay_from(self: Strategy, mark: int) -> int:
            return mark if self.mode is Mode.UNDO_REDO else int(original(self, mark))

        return replay_from

    patch(Strategy, "replay_from", make)


@_mutant
def forget_the_redone_state(patch: Patch) -> None:
    """When a correction beside a live branch is complete, its state is not taken over."""

    def make(_: Any) -> Any:
        def redone(self: Host) -> None:
            self.redo = self.live = None

        return redone

    patch(Host, "redone", make)


# SOutput.


@_mutant
def skip_rec_done(patch: Patch) -> None:
    """The end of a correction is not told."""

    def make(original: Any) -> Any:
        def end_correction(self: SOutput) -> Any:
            return [effect for effect in original(self) if type(effect.frame).__name__ != "RecDone"]

        return end_correction

    patch(SOutput, "end_correction", make)


@_mutant
def undo_one_too_many(patch: Patch) -> None:
    """UNDO revokes the last stable tuple too."""

    def make(original: Any) -> Any:
        def revoke(self: SOutput) -> Any:
            effects = original(self)
            return [replace(e, frame=replace(e.frame, last_id=max(e.frame.last_id - 1, -1))) for e in effects]

        return revoke

    patch(SOutput, "_revoke", make)


@_mutant
def forget_to_undo(patch: Patch) -> None:
    """Corrections are written without the UNDO before them."""

    def make(_: Any) -> Any:
        def revoke(self: SOutput) -> Any:
            self.is_provisional = False
            for track in self._all():
                track.tentative = 0
            return []

        return revoke

    patch(SOutput, "_revoke", make)


@_mutant
def keep_the_epoch_at_undo(patch: Patch) -> None:
    """The epoch does not grow at an UNDO, so that two tentative tuples bear one identity (R2)."""

    def make(original: Any) -> Any:
        def revoke(self: SOutput) -> Any:
            before = self.epoch
            effects = original(self)
            self.epoch = before
            return [replace(effect, frame=replace(effect.frame, epoch=before)) for effect in effects]

        return revoke

    patch(SOutput, "_revoke", make)


@_mutant
def count_tentative_ids_as_stable(patch: Patch) -> None:
    """Tentative tuples use up the ids of stable ones."""

    def make(original: Any) -> Any:
        def write_rows(self: SOutput, track: Any, rows: Any, step: Any) -> Any:
            effects = original(self, track, rows, step)
            if step.tentative:
                track.next_id += rows.num_rows
            return effects

        return write_rows

    patch(SOutput, "_write_rows", make)


@_mutant
def repeat_after_restart(patch: Patch) -> None:
    """A new life forgets what its log already holds, and writes it again."""

    def make(original: Any) -> Any:
        return lambda self, made, written, *rest: original(self, made, {}, *rest)

    patch(SOutput, "start", make)


@_mutant
def drop_boundary_on_recovery(patch: Patch) -> None:
    """The stable boundaries of a correction are not written."""

    def make(original: Any) -> Any:
        def write_stable(self: SOutput, track: Any, frame: Any) -> Any:
            if self.correcting and isinstance(frame, Boundary):
                return []
            return original(self, track, frame)

        return write_stable

    patch(SOutput, "_write_stable", make)


# Staggering.


@_mutant
def two_replicas_reconcile_at_once(patch: Patch) -> None:
    """Nobody asks a partner to stay live before reconciling (R22)."""
    patch(Stagger, "request", lambda _: lambda self, now: self._go(Permission.COVERED))


@_mutant
def grant_what_is_given_away(patch: Patch) -> None:
    """A replica promises to stay live though another has promised it the same, or though it has begun to reconcile."""

    def make(_: Any) -> Any:
        def answer(self: Stagger, sender: Any, now: int) -> Any:
            self.promised[sender] = _Promise(now)
            return [Send(sender, LeaseGrant(self.me))]

        return answer

    def request(original: Any) -> Any:
        def ask(self: Stagger, now: int) -> Any:
            if self.lessor is not None:
                return self._go(Permission.COVERED)
            return original(self, now)

        return ask

    patch(Stagger, "_answer", make)
    patch(Stagger, "request", request)


@_mutant
def wait_for_an_answer(patch: Patch) -> None:
    """A lease that was asked for is waited for, however long the partner is silent (R22)."""

    def make(original: Any) -> Any:
        def request(self: Stagger, now: int) -> Any:
            self.asked_at = now
            return original(self, now)

        return request

    patch(Stagger, "request", make)
    patch(Stagger, "_is_alive", lambda _: lambda self, peer, now: True)


@_mutant
def never_end_a_lease(patch: Patch) -> None:
    """A lease that was granted lasts for ever: neither its end nor the holder's state frees the lessor."""

    def make(original: Any) -> Any:
        def receive(self: Stagger, message: Any, now: int) -> Any:
            promised = dict(self.promised)
            effects = original(self, message, now)
            self.promised.update(promised)
            return effects

        return receive

    patch(Stagger, "receive", make)
    patch(Stagger, "forget_dead", lambda _: lambda self, now: None)


# Recovery, acknowledging, trimming.


@_mutant
def trim_too_early(patch: Patch) -> None:
    """An instance acknowledges what it has received, and not what it no longer needs (R26)."""

    def make(_: Any) -> Any:
        def acknowledged(self: Claims, has_partners: bool) -> Any:
            return tuple((link.port.key, link.port.tape.next_id) for link in self.links)

        return acknowledged

    patch(Claims, "acknowledged", make)


@_mutant
def trim_to_the_fastest_reader(patch: Patch) -> None:
    """A log is trimmed as soon as one of its readers needs it no more."""

    def make(original: Any) -> Any:
        def acknowledge(self: World, who: Any, positions: Any) -> None:
            for key, first_id in positions:
                for reader in self.claims[key]:
                    self.claims[key][reader] = max(self.claims[key][reader], first_id)
            original(self, who, positions)

        return acknowledge

    patch(World, "_acknowledge", make)


@_mutant
def never_acknowledge(patch: Patch) -> None:
    """No instance ever says what it no longer needs: logs grow for ever."""
    patch(Claims, "acknowledged", lambda _: lambda self, has_partners: ())


@_mutant
def trim_before_the_store_has_it(patch: Patch) -> None:
    """A checkpoint counts as safe once it is on its way to the store, which may be out of reach (R19)."""

    def make(original: Any) -> Any:
        def store(self: Claims, number: int, time: int, state: Any) -> Any:
            effect = original(self, number, time, state)
            self.note_stored(number)
            return effect

        return store

    patch(Claims, "store", make)


@_mutant
def never_return_from_recovering(patch: Patch) -> None:
    """An instance that was away stays RECOVERING."""
    patch(Instance, "_maybe_return", lambda _: lambda self, now: None)


@_mutant
def restart_without_the_state(patch: Patch) -> None:
    """A new life begins where its checkpoint stands, with an empty state."""
    patch(Host, "begin", lambda original: lambda self, state: original(self, None))


@_mutant
def restart_at_the_anchor_itself(patch: Patch) -> None:
    """A new life reads its inputs from the anchor on, and not from the oldest that its windows need (R26)."""

    def make(original: Any) -> Any:
        def restarts(self: World, process: Any) -> Any:
            for place in original(self, process):
                skips = place.state is None
                yield replace(place, position=max(place.position, place.muted_until)) if skips else place

        return restarts

    patch(World, "_restarts", make)


# Operator hosts in another process.


@_mutant
def obey_twice(patch: Patch) -> None:
    """A host that is given a batch again obeys it again on the state that it has: a ROLLBACK is applied twice."""

    def take(self: RemoteHost, data: bytes, keep: Any) -> bytes:
        place, order = decode_order(data, self._inputs)
        self.place = place
        return encode_answer(place, self._obey(order))

    patch(RemoteHost, "_take_whole", lambda _: take)
    patch(OrderedHost, "_rebuild", lambda _: lambda self, offset: None)


@_mutant
def believe_any_state(patch: Patch) -> None:
    """A host whose state was lost begins with the snapshot alone, and not with the orders after it."""

    def rebuild(self: OrderedHost, offset: int) -> None:
        self.host = RemoteHost(self.fragment, self._fetch)
        self._restored(offset)
        self.host.place = replace(self.host.place, number=1 << 40)

    def take(original: Any) -> Any:
        def believing(self: RemoteHost, data: bytes, keep: Any) -> Any:
            place, order = decode_order(data, self._inputs)
            if self.place.number == 1 << 40 and not isinstance(order, Begin):
                self.place = Place(place.incarnation, place.number - 1)
            return original(self, data, keep)

        return believing

    patch(OrderedHost, "_rebuild", lambda _: rebuild)
    patch(RemoteHost, "_take_whole", take)


@_mutant
def obey_the_dead(patch: Patch) -> None:
    """A host obeys orders of a life that is over (R25)."""

    def make(original: Any) -> Any:
        def take(self: RemoteHost, data: bytes, keep: Any) -> Any:
            place, order = decode_order(data, self._inputs)
            if place.incarnation < self.place.incarnation:
                self._obey(order)
                return None
            return original(self, data, keep)

        return take

    patch(RemoteHost, "_take_whole", make)


@_mutant
def believe_every_answer(patch: Patch) -> None:
    """An answer is taken for that of the oldest order under way, whichever it answers."""

    def make(original: Any) -> Any:
        def take(self: Engine, place: Place, answer: Answer, now: int, effects: Any) -> None:
            if self.under_way:
                original(self, Place(self.incarnation, self.under_way[0].number), answer, now, effects)

        return take

    patch(Engine, "take", make)


@_mutant
def undo_before_the_answer(patch: Patch) -> None:
    """ROLLBACK's UNDO does not wait for the tentative results that are under way before it."""

    def make(original: Any) -> Any:
        def hand(self: Engine, order: Any, now: int, effects: Any, then: Any, *more: Any) -> None:
            if isinstance(order, RollBack) and self.host is None:
                then(Answer(), now, effects)
                then = nothing_follows
            original(self, order, now, effects, then, *more)

        return hand

    patch(Engine, "hand", make)


@_mutant
def forget_how_long_a_host_takes(patch: Patch) -> None:
    """alpha*X leaves no time for the batches of a host in another process (R9)."""
    patch(Engine, "latency_us", lambda _: property(lambda self: 0))


@_mutant
def wait_for_a_dead_host(patch: Patch) -> None:
    """A host that has stopped is not noticed: its replica goes on calling itself STABLE (R10, R24)."""
    patch(Engine, "is_silent", lambda _: lambda self, now: False)


# Clocks.


@_mutant
def keep_the_clock_of_the_start(patch: Patch) -> None:
    """A process's clock stays as its machine's wall had it when the process began: nobody asks the broker."""
    patch(SharedClock, "take", lambda _: lambda self, *measured: None)


@_mutant
def believe_in_the_own_clock(patch: Patch) -> None:
    """That a clock is behind those that stamp what it reads is not taken off alpha*X (R9)."""
    patch(Link, "skew_us", lambda _: property(lambda self: 0))
