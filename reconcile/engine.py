"""The engine of one instance. It gives orders to the operator host, and returns what follows from each answer, in order.

A host in this process answers at once. A host in another process answers later. Until then its orders are under way, up to a
bound in bytes. The time that they take is subtracted from X to get alpha*X, the time for which buckets may be held back (R9).
A tuple may come just after a batch began, so the measured time is up to two batches.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median_low

from boreal.model.columns import batch_bytes
from boreal.model.errors import BorealError, ProtocolError
from boreal.query.plan import Plan
from reconcile.consequences import Consequence
from reconcile.events import Effect, Obey
from reconcile.host import Host
from reconcile.orders import Answer, DropLive, Order, Place
from sunion.steps import Step

LATENCY_SAMPLES = 256
"""The number of recent order latencies that are kept."""

LATENCY_GUESS_US = 500_000
"""The assumed latency of a host in another process before it is measured, in microseconds."""

LEAST_SAMPLES = 8
"""With fewer samples, the guess is a lower bound of the latency. An order may take two batches, and the first few orders may
all have met a short batch."""

SLOWNESS = 4
"""A host counts as stopped if it is silent for this many times its worst latency."""

PATIENCE = 2
"""A host also counts as stopped if it is silent for half of X, and for this many times its median latency. Then readers still
have time to switch to another replica. The median is used because a few slow orders, for example at the start, do not change
it."""


class HostFailed(BorealError):
    """The host in another process cannot execute an order: its state is lost, or an operator raised an error. The text says
    which, and names the rows of the order."""


@dataclass(slots=True)
class UnderWay:
    """An order that is not answered yet."""

    number: int
    """The number of the order in this incarnation."""
    since: int
    """Clock value at which the order was given, in microseconds."""
    nbytes: int
    """The size of its rows in bytes."""
    what: str
    """A description of its rows, for error messages."""
    is_live: bool
    """Whether it is a step of the live branch."""
    is_timed: bool
    """Whether its latency is measured."""
    then: Consequence | None
    """What follows from its answer; None if nothing does."""


@dataclass(slots=True)
class Engine:
    """The connection of an instance to its operator host: the orders under way, and the latency of the host."""

    incarnation: int
    """The number of this incarnation."""
    host: Host | None
    """The host in this process; None for a host in another process."""
    limit_bytes: int
    """The bound of the steps under way, in bytes of their rows."""
    silence_us: int
    """A shorter wait, in microseconds, never counts as silence of the host."""
    delay_threshold_us: int
    """X, in microseconds."""
    number: int = 0
    """The number of the last order that was given to a host in another process."""
    nbytes: int = 0
    """The size of the rows under way in bytes."""
    answered_at: int = 0
    """Clock value of the last answer, in microseconds."""
    has_begun: bool = False
    """Whether the host has answered in this incarnation."""
    copied_bytes: int = 0
    """The size of the last copy of the state in bytes."""
    under_way: deque[UnderWay] = field(default_factory=deque)
    """The orders that are not answered yet, oldest first."""
    latencies: deque[int] = field(default_factory=lambda: deque(maxlen=LATENCY_SAMPLES))
    """The latest measured latencies of orders, in microseconds."""

    def hand(
        self,
        order: Order,
        now: int,
        effects: list[Effect],
        then: Consequence | None = None,
        is_timed: bool = False,
        what: str = "",
    ) -> Answer | None:
        """Give an order to the host.

        A host in this process answers at once: the answer is returned. Otherwise the result is None, and `take` returns
        `then` when the answer arrives. is_timed: the order is of the usual kind, so its latency is measured. what: a
        description of its rows, for error messages.
        """
        if self.host is not None:
            return self._noted(self.host.obey(order))
        self.number += 1
        nbytes = sum(map(batch_bytes, order.batches.values())) if isinstance(order, Step) else 0
        is_live = isinstance(order, Step) and order.tentative
        self.under_way.append(UnderWay(self.number, now, nbytes, what, is_live, is_timed, then))
        self.nbytes += nbytes
        effects.append(Obey(Place(self.incarnation, self.number), order))
        return None

    def take(self, place: Place, answer: Answer, now: int) -> Consequence | None:
        """Take an answer, and return what follows from it; None for an answer to another incarnation, or a repeated one.

        ProtocolError if an answer is missing before this one. HostFailed if the host could not execute the order. After both
        errors this incarnation must end.
        """
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
        """Drop the live branch. Its steps under way are executed, but their output is not written."""
        for order in self.under_way:
            if order.is_live:
                order.then = None
        self.hand(DropLive(), now, effects)

    @property
    def latency_us(self) -> int:
        """The worst latency of an order, from giving it to its answer, in microseconds. It is one and a half times
        the largest sample, as for a hop, because few batches may have been measured. 0 for a host in this process."""
        if self.host is not None:
            return 0
        is_known = len(self.latencies) >= LEAST_SAMPLES
        return self._measured_us if is_known else max(self._measured_us, LATENCY_GUESS_US * 3 // 2)

    @property
    def is_full(self) -> bool:
        """Whether the steps under way have reached the bound in bytes, so that no other step is to be given."""
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
        """Whether the host counts as stopped. Then peers should not wait for the orders under way."""
        if self.host is not None:
            return False
        return bool(self.under_way) and self._is_too_long(now - max(self.under_way[0].since, self.answered_at))

    def is_behind(self, now: int) -> bool:
        """Whether the host has not begun yet, or has not caught up with its orders yet."""
        if self.host is not None:
            return False
        return not self.has_begun or (bool(self.under_way) and self._is_too_long(now - self.under_way[0].since))

    def discount(self, late_us: int) -> None:
        """Exclude a time in which this instance could not receive answers: the host was not silent in it."""
        self.answered_at += late_us
        for order in self.under_way:
            order.since += late_us

    def _excuse_absence(self, now: int) -> None:
        """Do not measure the orders that waited for the return of a host that was away. This is not the latency of an
        order."""
        if self.is_silent(now):
            for order in self.under_way:
                order.is_timed = False

    def _noted(self, answer: Answer) -> Answer:
        self.has_begun = True
        if answer.copied is not None:
            self.copied_bytes = answer.copied
        return answer


def least_threshold_us(plan: Plan, taken_us: int) -> int:
    """The smallest X that leaves time to hold a bucket back, in microseconds. `taken_us` is what the host and the path after
    it take."""
    wait = plan.completion_us
    return taken_us + wait + max(wait, (taken_us + wait) // 9)
