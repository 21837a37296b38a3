"""Staggering: which replica reconciles while another stays live."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from boreal.model.frames import State
from reconcile.events import Heartbeat, LeaseDenial, LeaseGrant, Send
from reconcile.instance import Instance
from reconcile.stagger import Permission, Stagger, Turn, _Promise
from simulation.mutants.registry import Patch, caught_by, mutant


@mutant
def two_replicas_reconcile_at_once(patch: Patch) -> None:
    """No replica asks a partner to stay live before it reconciles (R22)."""
    patch(Stagger, "request", lambda _: lambda self, now: self._go(Permission.COVERED))


@mutant
def grant_what_is_given_away(patch: Patch) -> None:
    """A replica promises to stay live although another has promised it the same, or although it reconciles already."""

    def make(_: Any) -> Any:
        def answer(self: Stagger, sender: Any, now: int) -> Any:
            self.promised[sender] = _Promise(now)
            return [Send(sender, LeaseGrant(self.me))]

        return answer

    def request(original: Any) -> Any:
        def ask(self: Stagger, now: int) -> Any:
            if self.turn is Turn.PERMITTED:
                return self._go(Permission.COVERED)
            return original(self, now)

        return ask

    patch(Stagger, "_answer", make)
    patch(Stagger, "request", request)


@mutant
def wait_for_an_answer(patch: Patch) -> None:
    """A replica waits for a requested lease for ever, even if the partner is silent (R22)."""

    def make(original: Any) -> Any:
        def request(self: Stagger, now: int) -> Any:
            self.asked_at = now
            return original(self, now)

        return request

    patch(Stagger, "request", make)
    patch(Stagger, "_is_alive", lambda _: lambda self, peer, now: True)


@mutant
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


@caught_by("reconcile/test_stagger.py", "test_a_grant_that_comes_too_late_is_given_back")
def take_a_late_lease_for_cover(patch: Patch) -> None:
    """A lease that arrives after its request was given up is kept, and neither returned nor ended (R22)."""

    def make(original: Any) -> Any:
        def receive(self: Stagger, message: Any, now: int) -> Any:
            if isinstance(message, LeaseGrant):
                self.turn, self.partner = Turn.ASKING, message.sender
            return original(self, message, now)

        return receive

    patch(Stagger, "receive", make)


@caught_by("reconcile/test_stagger.py", "test_one_that_recovers_stays_live_for_nobody")
def take_one_that_recovers_for_cover(patch: Patch) -> None:
    """A peer that is catching up counts as a live replica (R22)."""

    def make(original: Any) -> Any:
        def receive(self: Stagger, message: Any, now: int) -> Any:
            if isinstance(message, Heartbeat) and message.state is State.RECOVERING:
                message = replace(message, state=State.STABLE)
            return original(self, message, now)

        return receive

    patch(Stagger, "receive", make)


@mutant
def deny_all_requests(patch: Patch) -> None:
    """Every request for a lease is denied: replicas wait for each other (R22)."""

    def make(_: Any) -> Any:
        return lambda self, sender, now: [Send(sender, LeaseDenial(self.me))]

    patch(Stagger, "_answer", make)


@mutant
def grant_both_of_crossing_requests(patch: Patch) -> None:
    """Two requests that cross are both granted, so that both replicas reconcile (R22)."""

    def make(original: Any) -> Any:
        def answer(self: Stagger, sender: Any, now: int) -> Any:
            turn, partner = self.turn, self.partner
            if turn is Turn.ASKING and partner == sender:
                self.turn, self.partner = Turn.RESTING, None
            effects = original(self, sender, now)
            self.turn, self.partner = turn, partner
            return effects

        return answer

    def request(original: Any) -> Any:
        def ask(self: Stagger, now: int) -> Any:
            return self._go(Permission.COVERED) if self.turn is Turn.PERMITTED else original(self, now)

        return ask

    patch(Stagger, "_answer", make)
    patch(Stagger, "request", request)


@caught_by("reconcile/test_stagger.py", "test_a_lessor_waits_until_the_holder_is_done")
def end_no_lease(patch: Patch) -> None:
    """A replica that has reconciled does not end its lease: its lessor waits until it receives the new state (R22)."""

    def make(original: Any) -> Any:
        def done(self: Stagger) -> Any:
            original(self)
            return []

        return done

    patch(Stagger, "done", make)


@caught_by("reconcile/test_stagger.py", "test_one_that_was_away_has_no_lease")
def keep_a_lease_over_an_absence(patch: Patch) -> None:
    """A replica that was away still relies on a lease from before its absence (R22)."""
    patch(Stagger, "lose_lease", lambda _: lambda self: None)


@caught_by("reconcile/test_stagger.py", "test_time_in_which_it_could_not_listen_is_no_peers_silence")
def count_own_absence_as_a_peers_death(patch: Patch) -> None:
    """Time in which an instance worked, or was stopped, counts as silence of its peers (R22)."""
    patch(Stagger, "discount", lambda _: lambda self, late_us: None)


@caught_by("reconcile/test_instance.py", "test_what_befell_it_may_have_befallen_its_peer_which_is_heard_first")
def ask_before_listening(patch: Patch) -> None:
    """A replica requests its turn before it knows whether its peer was struck by the same failure (R22)."""
    patch(Instance, "_is_soon_corrected", lambda _: lambda self, mark: True)


@caught_by("reconcile/test_stagger.py", "test_a_lessor_waits_until_the_holder_is_done")
def reconcile_while_others_count_on_it(patch: Patch) -> None:
    """A replica that has promised to stay live reconciles nevertheless (R22)."""

    def make(original: Any) -> Any:
        def request(self: Stagger, now: int) -> Any:
            promised, self.promised = self.promised, {}
            answer = original(self, now)
            self.promised = promised
            return answer

        return request

    patch(Stagger, "request", make)


@caught_by("reconcile/test_instance.py", "test_one_that_stays_live_for_its_peer_goes_on_by_the_policy_for_stabilization")
def stand_in_for_nobody(patch: Patch) -> None:
    """A replica that stays live for another follows the policy for failures, and not the one for stabilization (R11)."""

    def make(original: Any) -> Any:
        def hand_on(self: Instance, now: int, effects: list[Any]) -> bool:
            promised, self.stagger.promised = self.stagger.promised, {}
            more = bool(original(self, now, effects))
            self.stagger.promised = promised
            return more

        return hand_on

    patch(Instance, "_hand_on", make)


@caught_by("reconcile/test_stagger.py", "test_the_end_of_calm_gives_each_peer_three_heartbeats_to_be_heard")
def stay_calm(patch: Patch) -> None:
    """Once all replicas were STABLE, heartbeats stay few although one of them is so no more (R22)."""

    def make(original: Any) -> Any:
        def watch(self: Stagger, state: State, now: int) -> None:
            was_calm = self.is_calm
            original(self, state, now)
            self.is_calm = self.is_calm or was_calm

        return watch

    patch(Stagger, "watch", make)


@caught_by("reconcile/test_stagger.py", "test_the_end_of_calm_gives_each_peer_three_heartbeats_to_be_heard")
def take_the_silence_of_calm_for_death(patch: Patch) -> None:
    """When calm ends, peers are dead that had no heartbeat to send in the last three intervals (R22)."""

    def make(original: Any) -> Any:
        def watch(self: Stagger, state: State, now: int) -> None:
            heard = {who: peer.heard for who, peer in self.peers.items()}
            original(self, state, now)
            for who, peer in self.peers.items():
                peer.heard = heard[who]

        return watch

    patch(Stagger, "watch", make)


@caught_by("reconcile/test_instance.py", "test_without_rows_it_beats_less_often_until_a_replica_is_not_stable")
def pause_among_peers_that_wait(patch: Patch) -> None:
    """An instance without rows beats as seldom as before, though one of its peers is not STABLE any more (R24)."""
    patch(Instance, "_beat_soon", lambda _: lambda self, now: None)
