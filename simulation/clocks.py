"""The clocks of a simulated machine: one that runs steadily, but not quite as fast as the others'; a wall that is off; and in
front of them the production `deployment.clock`, which asks a simulated broker for the time, as far as the network lets it.

The broker's time is run time, which is also what sources stamp and what invariants judge by.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from deployment.clock import SharedClock, pause_us
from embedded.world import Process, World

BROKER = "broker"
"""Its place in the network."""
RESOLUTION_US = 1_000
MOST_DRIFT = 100
"""Millionths, to either side."""


class MachineClock:
    """Sets its process's clock, and begins again with each of its lives. walls_us: how far the wall is off in each life in
    turn; after the last the first comes again."""

    def __init__(self, world: World, process: Process, walls_us: Sequence[int]) -> None:
        self._world, self._process, self._walls_us = world, process, walls_us
        self._rng = Random(f"clock of {process.id}")
        self._from_us = self._rng.randrange(1_000_000_000)
        self._drift = self._rng.randint(-MOST_DRIFT, MOST_DRIFT)
        self._incarnation = 0

    def begin(self) -> None:
        """A new life: it asks the broker before it stamps anything, if it can."""
        now = self._world.now
        self._incarnation += 1
        self._questions = 0
        self._clock = SharedClock(self._steady(now), self._wall(now))
        if self._reaches():
            self._take(now - 2 * self._way_us(), now)
        self._process.clock = lambda run_time: self._clock.read(self._steady(run_time))
        self._ask_later(self._incarnation)

    def _steady(self, now: int) -> int:
        return self._from_us + now + now * self._drift // 1_000_000

    def _wall(self, now: int) -> int:
        return now + self._walls_us[(self._incarnation - 1) % len(self._walls_us)]

    # Questions to the broker

    def _ask_later(self, incarnation: int) -> None:
        self._questions += 1
        self._world.at(self._world.now + pause_us(self._questions), lambda: self._ask(incarnation))

    def _ask(self, incarnation: int) -> None:
        if incarnation != self._incarnation:
            return
        now = self._world.now
        if self._reaches():
            self._world.at(now + 2 * self._way_us(), lambda: self._hear(incarnation, now))
        self._clock.follow_wall(self._steady(now), self._wall(now))
        self._ask_later(incarnation)

    def _hear(self, incarnation: int, sent: int) -> None:
        if incarnation != self._incarnation or not self._reaches():
            return
        if self._process.is_frozen:
            self._process.held.append(lambda: self._hear(incarnation, sent))
        else:
            self._take(sent, self._world.now)

    def _take(self, sent: int, received: int) -> None:
        stamp = self._rng.randint(sent, received) // RESOLUTION_US * RESOLUTION_US
        steady = self._steady(received)
        self._clock.take(self._steady(sent), steady, stamp, stamp + RESOLUTION_US - 1, steady)

    def _reaches(self) -> bool:
        return self._world.network.passes_data(BROKER, self._process.place)

    def _way_us(self) -> int:
        return self._world.network.latency(self._process.place)
