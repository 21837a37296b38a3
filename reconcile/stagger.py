"""Staggering: the replicas of one (fragment, shard) take turns to reconcile, so that one of them stays live (DPC, 'Processing
new tuples during reconciliation'; R22).

Before a replica reconciles, it gets a lease from one peer, which stays live meanwhile. No lease is needed if a peer is STABLE.
No replica waits for a dead peer: a peer counts as dead if it sends nothing for three heartbeat intervals, or does not answer a
request for as long. Of two crossing requests the one of the lower replica number wins.
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
"""A peer counts as dead if it sends nothing for this many heartbeat intervals."""


class Permission(Enum):
    """Whether a replica may reconcile now."""

    WAIT = "wait"
    """Not yet."""
    COVERED = "covered"
    """Yes, and a peer stays live meanwhile."""
    ALONE = "alone"
    """Yes, but no peer stays live meanwhile."""


@dataclass(slots=True)
class _Peer:
    heard: int
    state: State = State.STABLE


@dataclass(slots=True)
class _Promise:
    """A lease that was given to a peer."""

    since: int
    """Clock value at which it was given, in microseconds."""
    is_used: bool = False
    """Whether the holder has reported STABILIZATION since then."""


@dataclass(slots=True)
class Stagger:
    """The leases of one replica. Clock values and durations are in microseconds."""

    me: InstanceId
    """The replica."""
    peers: dict[InstanceId, _Peer]
    """Its peers: the other replicas of the same fragment and shard."""
    heartbeat_us: int
    """The heartbeat interval."""
    promised: dict[InstanceId, _Promise] = field(default_factory=dict)
    """The leases that this replica has given: the peers for which it stays live."""
    asked: InstanceId | None = None
    """The peer that was asked for a lease and has not answered; None without a request."""
    asked_at: int = 0
    """When it was asked, or when its denial arrived."""
    lessor: InstanceId | None = None
    """The peer that stays live for this replica; None without a lease."""
    reconciling: bool = False
    """Whether this replica reconciles."""

    @staticmethod
    def of(me: InstanceId, others: list[InstanceId], heartbeat_us: int) -> Stagger:
        """The leases of a replica with these peers, none of which was heard yet."""
        return Stagger(me, {other: _Peer(-(1 << 62)) for other in others}, heartbeat_us)

    def begin(self, now: int) -> None:
        """Count all peers as heard now, so that each has the usual time to send its first heartbeat."""
        for peer in self.peers.values():
            peer.heard = now

    def discount(self, late_us: int) -> None:
        """Exclude a time in which this instance could not receive messages: the peers were not silent in it."""
        for peer in self.peers.values():
            peer.heard += late_us

    def receive(self, message: Heartbeat | LeaseRequest | LeaseGrant | LeaseDenial | LeaseEnd, now: int) -> list[Send]:
        """Take a message of a peer, and return the answers to send."""
        peer = self.peers[message.sender]
        peer.heard = now
        match message:
            case Heartbeat(sender, state):
                peer.state = state
                self._judge_promise(sender, state, now)
                if sender == self.lessor and state is not State.UP_FAILURE and not self.reconciling:
                    self.lessor = None  # the lessor has left UP_FAILURE, so it regards the lease as ended
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
        """Ask for permission to reconcile, and return the messages to send. Call again until the answer is not WAIT."""
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
        """The correction is complete: end the lease, so that the lessor is free."""
        self.reconciling = False
        lessor, self.lessor = self.lessor, None
        return [Send(lessor, LeaseEnd(self.me))] if lessor is not None else []

    def lose_lease(self) -> None:
        """Forget the own lease and request. This instance was away, so the peers regard both as ended."""
        self.asked = self.lessor = None

    def forget_dead(self, now: int) -> None:
        """End the leases of dead peers, both those given and the own one."""
        for who in [who for who in self.promised if not self._is_alive(self.peers[who], now)]:
            del self.promised[who]
        if self.lessor is not None and not self._is_alive(self.peers[self.lessor], now):
            self.lessor = None

    def next_deadline(self) -> int | None:
        """Clock value at which an unanswered request is given up; None without a request."""
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
        """End a promise by the state in the holder's heartbeat, because the message that ends it may be lost.

        It ends if the holder has reconciled, has failed again since, or cannot reconcile. It also ends if the holder has not
        used it for as long as an answer may take.
        """
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
        """Begin to reconcile. A peer that was asked and has not answered is freed, because its lease is not needed."""
        self.reconciling = True
        asked, self.asked = self.asked, None
        return permission, [Send(asked, LeaseEnd(self.me))] if asked is not None else []
