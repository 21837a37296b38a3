"""Staggering: replicas of one (fragment, shard) take turns to reconcile, so that one stays live (DPC, 'Processing new
tuples during reconciliation'; R22).

Before it reconciles, a replica gets a lease from one peer that stays live meanwhile. None is needed where a peer is
STABLE, and nobody waits for a dead one: a peer not heard of for three heartbeats counts as dead, and so does one that
does not answer for as long. Of two crossing requests the lower replica number wins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import assert_never

from boreal.model.frames import State
from reconcile.events import (
    Heartbeat,
    InstanceId,
    LeaseDenial,
    LeaseEnd,
    LeaseGrant,
    LeaseRequest,
    Send,
)

HEARTBEATS_TO_DEATH = 3


class Permission(Enum):
    """The answer to 'may I reconcile now?'. ALONE: yes, but no peer stays live meanwhile."""

    WAIT = "wait"
    COVERED = "covered"
    ALONE = "alone"


@dataclass(slots=True)
class _Peer:
    heard: int
    state: State = State.STABLE


@dataclass(slots=True)
class _Promise:
    """When it was given, and whether its holder was heard to reconcile since."""

    since: int
    is_used: bool = False


@dataclass(slots=True)
class Stagger:
    """One replica's side of the leases. `promised`: peers to whom we stay live; `lessor`: who stays live for us."""

    me: InstanceId
    peers: dict[InstanceId, _Peer]
    heartbeat_us: int
    promised: dict[InstanceId, _Promise] = field(default_factory=dict)
    asked: InstanceId | None = None
    asked_at: int = 0
    lessor: InstanceId | None = None
    reconciling: bool = False

    @staticmethod
    def of(me: InstanceId, others: list[InstanceId], heartbeat_us: int) -> Stagger:
        return Stagger(me, {other: _Peer(-(1 << 62)) for other in others}, heartbeat_us)

    def begin(self, now: int) -> None:
        """Give the peers a moment to be heard."""
        for peer in self.peers.values():
            peer.heard = now

    def discount(self, late_us: int) -> None:
        """For so long we could not listen: it is not the peers' silence."""
        for peer in self.peers.values():
            peer.heard += late_us

    def receive(self, message: Heartbeat | LeaseRequest | LeaseGrant | LeaseDenial | LeaseEnd, now: int) -> list[Send]:
        peer = self.peers[message.sender]
        peer.heard = now
        match message:
            case Heartbeat(sender, state):
                peer.state = state
                self._judge_promise(sender, state, now)
                if sender == self.lessor and state is not State.UP_FAILURE and not self.reconciling:
                    self.lessor = None  # it was free to go on: it took our lease for ended
            case LeaseRequest(sender):
                return self._answer(sender, now)
            case LeaseGrant(sender):
                if self.asked == sender:
                    self.asked, self.lessor = None, sender
                else:
                    return [Send(sender, LeaseEnd(self.me))]
            case LeaseDenial(sender):
                if self.asked == sender:
                    self.asked_at = now
                    peer.state = State.STABILIZATION
                    self.asked = None
            case LeaseEnd(sender):
                self.promised.pop(sender, None)
            case _:
                assert_never(message)
        return []

    def request(self, now: int) -> tuple[Permission, list[Send]]:
        """Ask for leave to reconcile; call again until it is not WAIT."""
        self.forget_dead(now)
        if self.promised:
            return Permission.WAIT, []
        alive = {who: peer for who, peer in self.peers.items() if self._is_alive(peer, now)}
        if any(peer.state is State.STABLE for peer in alive.values()):
            return self._go(Permission.COVERED)
        if self.lessor is not None:
            return self._go(Permission.COVERED)
        if self.asked is not None:
            if self.asked in alive and now - self.asked_at <= HEARTBEATS_TO_DEATH * self.heartbeat_us:
                return Permission.WAIT, []
            return self._go(Permission.ALONE)
        candidates = [who for who, peer in sorted(alive.items()) if peer.state is State.UP_FAILURE]
        if candidates:
            self.asked, self.asked_at = candidates[0], now
            return Permission.WAIT, [Send(candidates[0], LeaseRequest(self.me))]
        if any(peer.state is State.STABILIZATION for peer in alive.values()):
            return Permission.WAIT, []
        return self._go(Permission.ALONE)

    def done(self) -> list[Send]:
        """The correction is complete: the lessor is free."""
        self.reconciling = False
        lessor, self.lessor = self.lessor, None
        return [Send(lessor, LeaseEnd(self.me))] if lessor is not None else []

    def lose_lease(self) -> None:
        """We were away: whoever covered us, or was asked to, waits for us no longer."""
        self.asked = self.lessor = None

    def forget_dead(self, now: int) -> None:
        """A lease dies with missed heartbeats on either side."""
        for who in [who for who in self.promised if not self._is_alive(self.peers[who], now)]:
            del self.promised[who]
        if self.lessor is not None and not self._is_alive(self.peers[self.lessor], now):
            self.lessor = None

    def next_deadline(self) -> int | None:
        """When an unanswered request is given up, or a peer that we wait for counts as dead."""
        if self.asked is not None:
            return self.asked_at + HEARTBEATS_TO_DEATH * self.heartbeat_us + 1
        return None

    def _answer(self, sender: InstanceId, now: int) -> list[Send]:
        crossed = self.asked == sender and self.me < sender
        if self.reconciling or self.lessor is not None or crossed:
            return [Send(sender, LeaseDenial(self.me))]
        if self.asked == sender:
            self.asked = None
        effects: list[Send] = []
        if self.asked is not None:
            effects.append(Send(self.asked, LeaseEnd(self.me)))
            self.asked = None
        self.promised[sender] = _Promise(now)
        return [*effects, Send(sender, LeaseGrant(self.me))]

    def _judge_promise(self, holder: InstanceId, state: State, now: int) -> None:
        """What the holder says of itself ends a promise too, since the message that does may be lost: it has reconciled, or
        has failed anew since, or cannot; or it has made no use of the promise in as long as an answer may take."""
        promise = self.promised.get(holder)
        if promise is None:
            return
        if state is State.STABILIZATION:
            promise.is_used = True
        elif state is not State.UP_FAILURE or promise.is_used or now - promise.since > HEARTBEATS_TO_DEATH * self.heartbeat_us:
            del self.promised[holder]

    def _is_alive(self, peer: _Peer, now: int) -> bool:
        return now - peer.heard <= HEARTBEATS_TO_DEATH * self.heartbeat_us

    def _go(self, permission: Permission) -> tuple[Permission, list[Send]]:
        """Take leave; who was asked and has not answered need not stay live for us."""
        self.reconciling = True
        asked, self.asked = self.asked, None
        return permission, [Send(asked, LeaseEnd(self.me))] if asked is not None else []
