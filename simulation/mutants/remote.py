"""Operator hosts in another process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from reconcile.engine import Engine
from reconcile.instance import Instance
from reconcile.orders import Answer, Begin, Place, RollBack, decode_order, encode_answer
from reconcile.remote import OrderedHost, RemoteHost
from simulation.mutants.registry import Patch, caught_by, mutant


@mutant
def obey_twice(patch: Patch) -> None:
    """A host that is given a batch again obeys it again on the state that it has: a ROLLBACK is applied twice."""

    def take(self: RemoteHost, data: bytes, keep: Any) -> bytes:
        place, order = decode_order(data, self._inputs)
        self.place = place
        return encode_answer(place, self._obey(order))

    patch(RemoteHost, "_take_whole", lambda _: take)
    patch(OrderedHost, "_rebuild", lambda _: lambda self, offset: None)


@mutant
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


@mutant
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


@mutant
def believe_every_answer(patch: Patch) -> None:
    """An answer is taken for that of the oldest order under way, whichever it answers."""

    def make(original: Any) -> Any:
        def take(self: Engine, place: Place, answer: Answer, now: int) -> Any:
            if not self.under_way:
                return None
            return original(self, Place(self.incarnation, self.under_way[0].number), answer, now)

        return take

    patch(Engine, "take", make)


@mutant
def undo_before_the_answer(patch: Patch) -> None:
    """ROLLBACK's UNDO does not wait for the tentative results that are under way before it."""

    def make(original: Any) -> Any:
        def give(self: Instance, order: Any, now: int, effects: Any, then: Any = None, *more: Any) -> None:
            if isinstance(order, RollBack) and self.engine.host is None:
                self._follow(then, Answer(), now, effects)
                then = None
            original(self, order, now, effects, then, *more)

        return give

    patch(Instance, "_order", make)


@caught_by("reconcile/test_remote.py", "test_the_time_in_which_a_host_was_away_is_not_what_an_order_takes")
def forget_how_long_a_host_takes(patch: Patch) -> None:
    """alpha*X leaves no time for the batches of a host in another process (R9)."""
    patch(Engine, "latency_us", lambda _: property(lambda self: 0))


@caught_by("reconcile/test_instance.py", "test_a_correction_whose_host_is_gone_holds_no_peer_back")
def wait_for_a_dead_host(patch: Patch) -> None:
    """A host that has stopped is not noticed: its replica goes on calling itself STABLE (R10, R24)."""
    patch(Engine, "is_silent", lambda _: lambda self, now: False)
