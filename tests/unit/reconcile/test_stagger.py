"""Leases: of the replicas of a fragment one at a time reconciles, and nobody waits for a dead one (R22)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from boreal.model.frames import State
from reconcile.events import Heartbeat, InstanceId, LeaseDenial, LeaseEnd, LeaseGrant, LeaseRequest, Send
from reconcile.stagger import CALM_BEATS, HEARTBEATS_TO_DEATH, Permission, Stagger

BEAT = 100
DEATH = HEARTBEATS_TO_DEATH * BEAT


def name(number: int) -> InstanceId:
    return InstanceId("main", f"r{number}", 0)


@dataclass
class Peers:
    """Several replicas, and the messages on their way; `dead` ones neither send nor receive."""

    count: int
    now: int = 0
    machines: dict[InstanceId, Stagger] = field(default_factory=dict)
    mail: list[tuple[InstanceId, Send]] = field(default_factory=list)
    dead: set[InstanceId] = field(default_factory=set)

    def __post_init__(self) -> None:
        everyone = [name(number) for number in range(self.count)]
        for who in everyone:
            self.machines[who] = Stagger.of(who, [other for other in everyone if other != who], BEAT)
        self.beat(State.UP_FAILURE)

    def beat(self, *states: State) -> None:
        """Each replica's heartbeat arrives at every other; the last state serves for all further ones."""
        for number, who in enumerate(self.machines):
            if who in self.dead:
                continue
            for other, machine in self.machines.items():
                if other != who and other not in self.dead:
                    self.post(other, machine.receive(Heartbeat(who, states[min(number, len(states) - 1)]), self.now))

    def ask(self, number: int) -> Permission:
        permission, sends = self.machines[name(number)].request(self.now)
        self.post(name(number), sends)
        return permission

    def post(self, sender: InstanceId, sends: list[Send]) -> None:
        if sender not in self.dead:
            self.mail += [(sender, send) for send in sends]

    def deliver(self) -> list[Any]:
        """All mail, and the answers to it; returns the messages in order."""
        seen = []
        while self.mail:
            _, send = self.mail.pop(0)
            seen.append(send.message)
            if send.to not in self.dead:
                self.post(send.to, self.machines[send.to].receive(send.message, self.now))  # type: ignore[arg-type]
        return seen


def test_in_calm_a_peer_is_dead_only_after_it_has_missed_three_of_its_few_heartbeats() -> None:
    peers = Peers(2)
    one = peers.machines[name(0)]
    peers.beat(State.STABLE)
    one.watch(State.STABLE, 0)
    assert one.is_calm
    peers.now = CALM_BEATS * DEATH
    assert peers.ask(0) is Permission.COVERED
    one.done()
    peers.now += 1
    assert peers.ask(0) is Permission.ALONE


@pytest.mark.parametrize("own", [True, False])
def test_the_end_of_calm_gives_each_peer_three_heartbeats_to_be_heard(own: bool) -> None:
    """It may have been silent for long, since it was to be; but not for longer than in calm."""
    peers = Peers(3)
    one = peers.machines[name(0)]
    peers.beat(State.STABLE)
    one.watch(State.STABLE, 0)
    peers.now = 5 * DEATH
    if own:
        one.watch(State.UP_FAILURE, peers.now)
    else:
        one.receive(Heartbeat(name(1), State.UP_FAILURE), peers.now)
        one.watch(State.STABLE, peers.now)
    assert not one.is_calm
    peers.now += DEATH
    assert peers.ask(0) is Permission.COVERED, "by a peer that counts as STABLE"
    one.done()
    peers.now += 1
    assert peers.ask(0) is Permission.ALONE
    one.done()
    peers.beat(State.STABLE)
    one.watch(State.STABLE, peers.now)
    assert one.is_calm


def test_a_peer_that_was_dead_in_calm_is_not_alive_when_it_ends() -> None:
    peers = Peers(2)
    one = peers.machines[name(0)]
    peers.beat(State.STABLE)
    one.watch(State.STABLE, 0)
    peers.now = CALM_BEATS * DEATH + 1
    one.watch(State.UP_FAILURE, peers.now)
    assert peers.ask(0) is Permission.ALONE


def test_a_lease_is_asked_for_and_given() -> None:
    peers = Peers(2)
    assert peers.ask(0) is Permission.WAIT
    assert peers.deliver() == [LeaseRequest(name(0)), LeaseGrant(name(1))]
    assert peers.ask(0) is Permission.COVERED


def test_a_lessor_waits_until_the_holder_is_done() -> None:
    peers = Peers(2)
    peers.ask(0)
    peers.deliver()
    peers.ask(0)
    assert peers.ask(1) is Permission.WAIT and peers.mail == []
    peers.post(name(0), peers.machines[name(0)].done())
    peers.beat(State.STABLE, State.UP_FAILURE)
    assert peers.deliver() == [LeaseEnd(name(0))]
    assert peers.ask(1) is Permission.COVERED, "its peer is STABLE now, and no lease is needed"


def test_of_crossed_requests_the_lower_replica_wins() -> None:
    peers = Peers(2)
    assert peers.ask(0) is peers.ask(1) is Permission.WAIT
    peers.deliver()
    assert peers.ask(0) is Permission.COVERED
    assert peers.ask(1) is Permission.WAIT


@pytest.mark.parametrize("first", [0, 1])
def test_crossed_requests_end_with_one_holder_in_whatever_order_they_arrive(first: int) -> None:
    peers = Peers(2)
    peers.ask(0), peers.ask(1)
    if first:
        peers.mail.reverse()
    peers.deliver()
    permissions = [peers.ask(0), peers.ask(1)]
    assert permissions == [Permission.COVERED, Permission.WAIT]


def test_no_lease_is_needed_where_a_peer_is_stable() -> None:
    peers = Peers(2)
    peers.beat(State.UP_FAILURE, State.STABLE)
    assert peers.ask(0) is Permission.COVERED and peers.mail == []


def test_alone_there_is_nobody_to_ask() -> None:
    assert Peers(1).ask(0) is Permission.ALONE


def test_a_dead_peer_is_not_waited_for() -> None:
    peers = Peers(2)
    peers.dead.add(name(1))
    peers.now = DEATH + 1
    assert peers.ask(0) is Permission.ALONE and peers.mail == []


def test_no_answer_within_three_heartbeats_means_go_on() -> None:
    """The peer beats, but does not answer: messages may be lost one way."""
    peers = Peers(2)
    peers.ask(0)
    peers.mail.clear()
    assert peers.machines[name(0)].next_deadline() == DEATH + 1
    for peers.now in (BEAT, 2 * BEAT, 3 * BEAT):
        peers.beat(State.UP_FAILURE)
        assert peers.ask(0) is Permission.WAIT
    peers.now = DEATH + 1
    assert peers.ask(0) is Permission.ALONE
    assert peers.deliver() == [LeaseEnd(name(0))], "a grant that comes too late must not bind the other"


def test_a_grant_that_comes_too_late_is_given_back() -> None:
    peers = Peers(2)
    late = peers.machines[name(0)].receive(LeaseGrant(name(1)), 5)
    assert late == [Send(name(1), LeaseEnd(name(0)))]


def test_a_lessor_that_dies_while_the_holder_reconciles_leaves_it_free_to_finish() -> None:
    peers = Peers(2)
    peers.ask(0)
    peers.deliver()
    peers.ask(0)
    peers.dead.add(name(1))
    peers.now = DEATH + 1
    peers.machines[name(0)].forget_dead(peers.now)
    assert peers.machines[name(0)].done() == []


def test_the_next_turn_waits_for_the_end_of_the_last_one() -> None:
    """A host in another process may not have said yet that the last correction is complete."""
    peers = Peers(2)
    peers.beat(State.UP_FAILURE, State.STABLE)
    assert peers.ask(0) is Permission.COVERED
    assert peers.ask(0) is Permission.WAIT
    peers.machines[name(0)].done()
    assert peers.ask(0) is Permission.COVERED


def test_a_lessor_that_dies_before_the_holder_begins_is_replaced() -> None:
    peers = Peers(3)
    peers.ask(0)
    peers.deliver()
    peers.dead.add(name(1))
    peers.now = DEATH + 1
    peers.beat(State.UP_FAILURE)
    assert peers.ask(0) is Permission.WAIT
    assert peers.deliver() == [LeaseRequest(name(0)), LeaseGrant(name(2))]


def test_a_holder_that_dies_frees_its_lessor() -> None:
    peers = Peers(2)
    peers.ask(0)
    peers.deliver()
    peers.dead.add(name(0))
    peers.now = DEATH
    assert peers.ask(1) is Permission.WAIT
    peers.now = DEATH + 1
    assert peers.ask(1) is Permission.ALONE


def test_a_holder_that_is_stable_or_recovering_needs_its_lease_no_more() -> None:
    """The LeaseEnd may have been lost."""
    for state in (State.STABLE, State.RECOVERING):
        peers = Peers(2)
        peers.ask(0)
        peers.deliver()
        peers.beat(state, State.UP_FAILURE)
        assert peers.ask(1) is not Permission.WAIT or peers.mail


def test_one_that_reconciles_grants_nothing_and_one_that_has_granted_may_grant_more() -> None:
    peers = Peers(3)
    peers.ask(0)
    assert peers.deliver() == [LeaseRequest(name(0)), LeaseGrant(name(1))]
    peers.ask(0)
    assert peers.machines[name(1)].receive(LeaseRequest(name(2)), 0) == [Send(name(2), LeaseGrant(name(1)))]
    assert peers.machines[name(0)].receive(LeaseRequest(name(2)), 0) == [Send(name(2), LeaseDenial(name(0)))]


def test_three_replicas_never_all_reconcile_at_once() -> None:
    peers = Peers(3)
    states = [State.UP_FAILURE] * 3
    done = [False] * 3
    for _ in range(40):
        for number in range(3):
            if states[number] is State.UP_FAILURE and not done[number] and peers.ask(number) is not Permission.WAIT:
                states[number] = State.STABILIZATION
        assert State.STABILIZATION not in states or any(state is not State.STABILIZATION for state in states)
        peers.deliver()
        for number in range(3):
            if states[number] is State.STABILIZATION:
                states[number], done[number] = State.STABLE, True
                peers.post(name(number), peers.machines[name(number)].done())
                break
        peers.deliver()
        peers.now += BEAT
        peers.beat(*states)
    assert done == [True] * 3


def test_a_lessor_that_says_otherwise_covers_us_no_more() -> None:
    """We were away as its grant came, so it took the lease for ended and reconciles itself."""
    peers = Peers(2)
    peers.ask(0)
    peers.deliver()
    peers.beat(State.UP_FAILURE, State.STABILIZATION)
    assert peers.ask(0) is Permission.WAIT


def test_one_that_was_away_has_no_lease() -> None:
    peers = Peers(2)
    peers.ask(0)
    peers.deliver()
    peers.machines[name(0)].lose_lease()
    assert peers.ask(0) is Permission.WAIT and peers.deliver()[0] == LeaseRequest(name(0))


def test_a_lease_whose_end_was_lost_ends_with_what_its_holder_says() -> None:
    """It has reconciled, and has failed anew in its midst."""
    peers = Peers(2)
    peers.ask(0)
    peers.deliver()
    peers.beat(State.STABILIZATION, State.UP_FAILURE)
    assert peers.ask(1) is Permission.WAIT and peers.mail == []
    peers.machines[name(0)].done()
    peers.beat(State.UP_FAILURE)
    assert peers.ask(1) is Permission.WAIT and peers.deliver() == [LeaseRequest(name(1)), LeaseGrant(name(0))]


def test_a_promise_of_which_no_use_is_made_ends() -> None:
    """The grant was lost, and its holder has gone another way."""
    peers = Peers(2)
    peers.ask(0)
    peers.deliver()
    for peers.now in (BEAT, 2 * BEAT, DEATH):
        peers.beat(State.UP_FAILURE)
        assert peers.ask(1) is Permission.WAIT and peers.mail == []
    peers.now = DEATH + 1
    peers.beat(State.UP_FAILURE)
    assert peers.machines[name(1)].promised == {}


def test_a_dead_holder_frees_its_lessor_though_that_does_not_ask() -> None:
    """Until then it stands in for the other, by the policy of stabilization."""
    peers = Peers(2)
    peers.ask(0)
    peers.deliver()
    lessor = peers.machines[name(1)]
    lessor.forget_dead(DEATH)
    assert lessor.promised
    lessor.forget_dead(DEATH + 1)
    assert not lessor.promised


def test_one_that_recovers_stays_live_for_nobody() -> None:
    """It sends nothing before it has caught up, and nobody waits for that."""
    peers = Peers(2)
    peers.beat(State.UP_FAILURE, State.RECOVERING)
    assert peers.ask(0) is Permission.ALONE


def test_time_in_which_it_could_not_listen_is_no_peers_silence() -> None:
    peers = Peers(2)
    peers.beat(State.UP_FAILURE, State.STABLE)
    peers.now = 10 * DEATH
    peers.machines[name(0)].discount(10 * DEATH)
    assert peers.ask(0) is Permission.COVERED
    peers.machines[name(0)].done()
    peers.now += DEATH + 1
    assert peers.ask(0) is Permission.ALONE
