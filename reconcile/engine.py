"""The engine of one instance: gives orders to the operator host, and says what follows from each answer, in order.

A host beside us answers at once. One in another process answers later: until then orders are under way, no more of them
than a bound of bytes, and how long they take counts in what alpha*X leaves for holding buckets back (R9: a tuple may come
just after a batch began, so what is measured is up to two batches).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median_low

from boreal.model.errors import BorealError, ProtocolError
from boreal.query.plan import Plan
from reconcile.consequences import Consequence
from reconcile.events import Effect, Obey
from reconcile.host import Host
from reconcile.orders import Answer, DropLive, Order, Place
from sunion.steps import Step

LATENCY_SAMPLES = 256

LATENCY_GUESS_US = 500_000
"""What a host in another process is taken to need before it was measured."""

LEAST_SAMPLES = 8
"""With fewer, the guess still counts: an order may take two batches, and the first few may all have met a short one."""

SLOWNESS = 4
"""A host that says nothing for so many times its worst latency has stopped."""

PATIENCE = 2
"""It has stopped as well if it says nothing for half of X, and for so many times its usual latency: then there is just time to
read from another. A few orders that took long, as when it began, do not change what is usual."""


class HostFailed(BorealError):
    """The host in another process cannot obey an order: its state is lost, or an operator raised what the text tells."""


@dataclass(slots=True)
class UnderWay:
    """An order that is not yet answered. since: when it was given; nbytes: of its rows; what: which these are, for people;
    is_live: a step of the live branch; is_timed: how long it takes is to be measured."""

    number: int
    since: int
    nbytes: int
    what: str
    is_live: bool
    is_timed: bool
    then: Consequence | None


@dataclass(slots=True)
class Engine:
    """host: the one beside us, None for one in another process. limit_bytes: of steps under way. silence_us: the least
    silence that counts as one. delay_threshold_us: X."""

    incarnation: int
    host: Host | None
    limit_bytes: int
    silence_us: int
    delay_threshold_us: int
    number: int = 0
    nbytes: int = 0
    answered_at: int = 0
    has_begun: bool = False
    copied_bytes: int = 0
    under_way: deque[UnderWay] = field(default_factory=deque)
    latencies: deque[int] = field(default_factory=lambda: deque(maxlen=LATENCY_SAMPLES))

    def hand(
        self,
        order: Order,
        now: int,
        effects: list[Effect],
        then: Consequence | None = None,
        is_timed: bool = False,
        what: str = "",
    ) -> Answer | None:
        """Give an order; its answer, where the host is beside us. Else `take` returns `then` once the answer has come.

        is_timed: it is one of the usual kind, whose time is to be measured. what: the rows that it is about, for people.
        """
        if self.host is not None:
            return self._noted(self.host.obey(order))
        self.number += 1
        nbytes = sum(batch.nbytes for batch in order.batches.values()) if isinstance(order, Step) else 0
        is_live = isinstance(order, Step) and order.tentative
        self.under_way.append(UnderWay(self.number, now, nbytes, what, is_live, is_timed, then))
        self.nbytes += nbytes
        effects.append(Obey(Place(self.incarnation, self.number), order))
        return None

    def take(self, place: Place, answer: Answer, now: int) -> Consequence | None:
        """Hear an answer; what follows from it. Nothing does from one of another life, or heard before. ProtocolError where
        one is missing, HostFailed where the host has given up: this life is over."""
        if place.incarnation != self.incarnation or not self.under_way or place.number < self.under_way[0].number:
            return None
        if answer.failed is not None:
            failed = next((order for order in self.under_way if order.number == place.number), self.under_way[0])
            raise HostFailed(f"{answer.failed}\n{failed.what}".rstrip())
        if place.number > self.under_way[0].number:
            raise ProtocolError(f"the host answered order {place.number} before order {self.under_way[0].number}")
        self._excuse_absence(now)
        order = self.under_way.popleft()
        self.nbytes -= order.nbytes
        self.answered_at = now
        if order.is_timed:
            self.latencies.append(now - order.since)
        self._noted(answer)
        return order.then

    def drop_live(self, now: int, effects: list[Effect]) -> None:
        """Give up the live branch: what is under way of it will not be shown."""
        for order in self.under_way:
            if order.is_live:
                order.then = None
        self.hand(DropLive(), now, effects)

    @property
    def latency_us(self) -> int:
        """How long an order takes at worst, from our handing it over to its answer: half as much again as was seen, as for a
        hop, since few batches may have been seen."""
        if self.host is not None:
            return 0
        is_known = len(self.latencies) >= LEAST_SAMPLES
        return self._measured_us if is_known else max(self._measured_us, LATENCY_GUESS_US * 3 // 2)

    @property
    def is_full(self) -> bool:
        return self.nbytes >= self.limit_bytes

    @property
    def _measured_us(self) -> int:
        return max(self.latencies, default=LATENCY_GUESS_US) * 3 // 2

    def _is_too_long(self, wait_us: int) -> bool:
        if wait_us <= self.silence_us:
            return False
        usual_us = median_low(self.latencies) if self.latencies else 0
        worth_waiting_us = max(self.delay_threshold_us // 2, PATIENCE * usual_us)
        return wait_us > min(SLOWNESS * self._measured_us, worth_waiting_us)

    def is_silent(self, now: int) -> bool:
        """Whether the host has stopped: nobody should wait for what we have given it."""
        if self.host is not None:
            return False
        return bool(self.under_way) and self._is_too_long(now - max(self.under_way[0].since, self.answered_at))

    def is_behind(self, now: int) -> bool:
        """Whether the host has yet to begin, or to catch up."""
        if self.host is not None:
            return False
        return not self.has_begun or (bool(self.under_way) and self._is_too_long(now - self.under_way[0].since))

    def discount(self, late_us: int) -> None:
        """For so long we could not listen: it is not the host's silence."""
        self.answered_at += late_us
        for order in self.under_way:
            order.since += late_us

    def _excuse_absence(self, now: int) -> None:
        """For how long a host was away is not what an order takes: what waited for its return is not measured."""
        if self.is_silent(now):
            for order in self.under_way:
                order.is_timed = False

    def _noted(self, answer: Answer) -> Answer:
        self.has_begun = True
        if answer.copied is not None:
            self.copied_bytes = answer.copied
        return answer


def least_threshold_us(plan: Plan, taken_us: int) -> int:
    """The smallest X that leaves time to hold a bucket back at all, where a host and the path after it take so long."""
    wait = plan.completion_us
    return taken_us + wait + max(wait, (taken_us + wait) // 9)
