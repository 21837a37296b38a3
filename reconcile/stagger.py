"""Staggering: the replicas of one (fragment, shard) take turns to reconcile, so that one of them stays live (DPC, 'Processing
new tuples during reconciliation'; R22).

Before a replica reconciles, it gets a lease from one peer, which stays live meanwhile. No lease is needed if a peer is STABLE.
No replica waits for a dead peer: a peer counts as dead if it sends nothing for three heartbeat intervals, or does not answer a
request for as long. Of two crossing requests the one of the lower replica number wins.

While all replicas are STABLE, none of this is needed, so heartbeats are few (CALM_BEATS). The first heartbeat that tells of
another state ends the calm: from then on all beat at every interval, and are judged by it.

`TURNS` describes a replica's own lease. The leases that it has given to others are apart from it (`promised`). The diagram
in docs/protocol.md is generated from the table.
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


CALM_BEATS = 10
"""While all replicas are STABLE, a heartbeat is sent only at every so-manieth heartbeat interval."""

QUIET_TIMES = 8
"""Where instances may be silent for longer (R24), those without rows repeat so many times less often what they have said."""


class Permission(Enum):
    """Whether a replica may reconcile now."""

    WAIT = "wait"
    """Not yet."""
    COVERED = "covered"
    """Yes, and a peer stays live meanwhile."""
    ALONE = "alone"
    """Yes, but no peer stays live meanwhile."""


class Turn(Enum):
    """How far a replica's own turn has come."""

    RESTING = "resting"
    """It asks for nothing."""
    ASKING = "asking"
    """It has asked a peer for a lease."""
    PERMITTED = "permitted"
    """It has the lease."""
    RECONCILING = "reconciling"
    """It reconciles, with a lease or without one."""


TURNS: dict[tuple[Turn, Turn], str] = {
    (Turn.RESTING, Turn.ASKING): "healed: ask a live peer in UP_FAILURE",
    (Turn.RESTING, Turn.RECONCILING): "a peer is STABLE, or none can stay live",
    (Turn.ASKING, Turn.PERMITTED): "the peer grants the lease",
    (Turn.ASKING, Turn.RESTING): "the peer denies it, another request comes first, or this replica was away",
    (Turn.ASKING, Turn.RECONCILING): "the peer is dead or does not answer, or a peer has become STABLE",
    (Turn.PERMITTED, Turn.RECONCILING): "begin",
    (Turn.PERMITTED, Turn.RESTING): "the lessor is dead or has left UP_FAILURE, or this replica was away or needs no lease",
    (Turn.RECONCILING, Turn.RESTING): "the correction is complete",
}


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
    calm_beats: int
    """While all are STABLE, a heartbeat comes at least after so many heartbeat intervals."""
    promised: dict[InstanceId, _Promise] = field(default_factory=dict)
    """The leases that this replica has given: the peers for which it stays live."""
    turn: Turn = Turn.RESTING
    """How far this replica's own turn has come."""
    partner: InstanceId | None = None
    """While ASKING, the peer that was asked; later the lessor, which stays live for this replica. None if there is none."""
    asked_at: int = 0
    """When a peer was asked, or when its denial arrived."""
    is_calm: bool = False
    """Whether this replica and all its peers are STABLE, as far as it knows."""

    @staticmethod
    def of(me: InstanceId, others: list[InstanceId], heartbeat_us: int, calm_beats: int = CALM_BEATS) -> Stagger:
        """The leases of a replica with these peers, none of which was heard yet."""
        return Stagger(me, {other: _Peer(-(1 << 62)) for other in others}, heartbeat_us, calm_beats)

    def begin(self, now: int) -> None:
        """Count all peers as heard now, so that each has the usual time to send its first heartbeat."""
        for peer in self.peers.values():
            peer.heard = now

    def set_pace(self, heartbeat_us: int, calm_beats: int, now: int) -> None:
        """Beat at this interval from now on. If heartbeats were fewer before, the peers that were alive count as heard now."""
        if calm_beats < self.calm_beats:
            for peer in self.peers.values():
                if self._is_alive(peer, now):
                    peer.heard = now
        self.heartbeat_us, self.calm_beats = heartbeat_us, calm_beats

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
                if self.turn is Turn.PERMITTED and sender == self.partner and state is not State.UP_FAILURE:
                    self._move(Turn.RESTING)  # the lessor has left UP_FAILURE, so it regards the lease as ended
            case LeaseRequest(sender):
                return self._answer(sender, now)
            case LeaseGrant(sender):
                if self._has_asked(sender):
                    self._move(Turn.PERMITTED, sender)
                else:
                    return [Send(sender, LeaseEnd(self.me))]
            case LeaseDenial(sender):
                if self._has_asked(sender):
                    self.asked_at = now
                    peer.state = State.STABILIZATION
                    self._move(Turn.RESTING)
            case LeaseEnd(sender):
                self.promised.pop(sender, None)
            case _:
                assert_never(message)
        return []

    def watch(self, state: State, now: int) -> None:
        """Note the state of this replica, and whether there is calm. When it ends, the peers that were alive count as heard
        now: from now on they beat at every interval."""
        was_calm = self.is_calm
        is_calm = all(each is State.STABLE for each in (state, *(peer.state for peer in self.peers.values())))
        if was_calm and not is_calm:
            for peer in self.peers.values():
                if self._is_alive(peer, now):
                    peer.heard = now
        self.is_calm = is_calm

    def request(self, now: int) -> tuple[Permission, list[Send]]:
        """Ask for permission to reconcile, and return the messages to send. Call again until the answer is not WAIT."""
        self.forget_dead(now)
        if self.promised or self.turn is Turn.RECONCILING:
            return Permission.WAIT, []  # the host of the last correction may not have said yet that it is complete
        alive = {who: peer for who, peer in self.peers.items() if self._is_alive(peer, now)}
        if any(peer.state is State.STABLE for peer in alive.values()):
            return self._go(Permission.COVERED)
        if self.turn is Turn.PERMITTED:
            return self._go(Permission.COVERED)
        if self.turn is Turn.ASKING:
            if self.partner in alive and now - self.asked_at <= HEARTBEATS_TO_DEATH * self.heartbeat_us:
                return Permission.WAIT, []
            return self._go(Permission.ALONE)
        candidates = [who for who, peer in sorted(alive.items()) if peer.state is State.UP_FAILURE]
        if candidates:
            self._move(Turn.ASKING, candidates[0])
            self.asked_at = now
            return Permission.WAIT, [Send(candidates[0], LeaseRequest(self.me))]
        if any(peer.state is State.STABILIZATION for peer in alive.values()):
            return Permission.WAIT, []
        return self._go(Permission.ALONE)

    def done(self) -> list[Send]:
        """The correction is complete: end the lease, so that the lessor is free."""
        if self.turn in (Turn.RESTING, Turn.ASKING):
            return []  # this correction needed no lease
        lessor = self.partner
        self._move(Turn.RESTING)
        return [Send(lessor, LeaseEnd(self.me))] if lessor is not None else []

    def lose_lease(self) -> None:
        """Forget the own lease and request. This instance was away, so the peers regard both as ended."""
        self._lose_partner()

    def forget_dead(self, now: int) -> None:
        """End the leases of dead peers, both those given and the own one."""
        for who in [who for who in self.promised if not self._is_alive(self.peers[who], now)]:
            del self.promised[who]
        lessor = self.partner if self.turn is not Turn.ASKING else None
        if lessor is not None and not self._is_alive(self.peers[lessor], now):
            self._lose_partner()

    def next_deadline(self) -> int | None:
        """Clock value at which an unanswered request is given up; None without a request."""
        if self.turn is Turn.ASKING:
            return self.asked_at + HEARTBEATS_TO_DEATH * self.heartbeat_us + 1
        return None

    def _answer(self, sender: InstanceId, now: int) -> list[Send]:
        crossed = self._has_asked(sender) and self.me < sender
        if self.turn in (Turn.PERMITTED, Turn.RECONCILING) or crossed:
            return [Send(sender, LeaseDenial(self.me))]
        effects: list[Send] = []
        if self.turn is Turn.ASKING:
            effects += [Send(self.partner, LeaseEnd(self.me))] if self.partner is not None and self.partner != sender else []
            self._move(Turn.RESTING)
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
        beats = HEARTBEATS_TO_DEATH * self.calm_beats if self.is_calm else HEARTBEATS_TO_DEATH
        return now - peer.heard <= beats * self.heartbeat_us

    def _go(self, permission: Permission) -> tuple[Permission, list[Send]]:
        """Begin to reconcile. A peer that was asked and has not answered is freed, because its lease is not needed."""
        if self.turn is Turn.ASKING and self.partner is not None:
            sends = [Send(self.partner, LeaseEnd(self.me))]
            self._move(Turn.RECONCILING)
            return permission, sends
        self._move(Turn.RECONCILING, self.partner)
        return permission, []

    def _has_asked(self, peer: InstanceId) -> bool:
        return self.turn is Turn.ASKING and self.partner == peer

    def _lose_partner(self) -> None:
        if self.turn is Turn.RECONCILING:
            self.partner = None
        elif self.turn is not Turn.RESTING:
            self._move(Turn.RESTING)

    def _move(self, turn: Turn, partner: InstanceId | None = None) -> None:
        """Take a transition. One that the table does not have is a bug."""
        assert (self.turn, turn) in TURNS, f"no transition from {self.turn.value} to {turn.value}"
        self.turn, self.partner = turn, partner
