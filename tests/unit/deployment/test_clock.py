"""The clock that all services share: it follows the reference, never jumps, never goes back."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from deployment.clock import SLEW, SharedClock, pause_us

MS = 1_000
S = 1_000_000
STEADY = 77 * S
"""Where the steady clock is when the process begins."""
WALL = 1_700_000_000 * S


class World:
    """True time runs from 0. The reference is `reference_us` ahead of WALL + true time, and this machine's wall `wall_us`."""

    def __init__(self, wall_us: int = 0, drift: int = 0) -> None:
        self.now = 0
        self.reference_us = 0
        self.wall_us = wall_us
        self.drift = drift
        self.reads: list[int] = []
        self.clock = SharedClock(self.steady, self.wall)

    @property
    def steady(self) -> int:
        return STEADY + self.now + self.now * self.drift // 1_000_000

    @property
    def wall(self) -> int:
        return WALL + self.now + self.wall_us

    @property
    def reference(self) -> int:
        return WALL + self.now + self.reference_us

    def ask(self, out_us: int = 500, back_us: int = 500) -> None:
        sent = self.steady
        self.now += out_us
        stamp = self.reference // MS * MS
        self.now += back_us
        self.clock.take(sent, self.steady, stamp, stamp + MS - 1, self.steady)

    def read(self) -> int:
        self.reads.append(self.clock.read(self.steady))
        return self.reads[-1]

    @property
    def off_us(self) -> int:
        """How far the clock is ahead of the reference."""
        return self.read() - self.reference

    def run(self, seconds: float, every_us: int = S, out_us: int = 500, back_us: int = 500) -> None:
        end = self.now + int(seconds * S)
        while self.now < end:
            self.now = min(self.now + every_us, end)
            self.read()
            self.ask(out_us, back_us)


def test_before_the_reference_has_answered_the_wall_counts() -> None:
    world = World(wall_us=2 * S)
    assert world.read() == world.wall
    assert world.clock.wall_offset(world.steady, world.wall) is None
    assert world.clock.uncertainty(world.steady) is None and world.clock.error(world.steady) is None


def test_the_first_measurement_sets_the_clock_at_once_if_nothing_was_stamped() -> None:
    for wall_us in (-3_600 * S, -2 * S, 0, 2 * S, 3_600 * S):
        world = World(wall_us)
        world.ask()
        assert abs(world.off_us) <= MS
        assert world.clock.wall_offset(world.steady, world.wall) == pytest.approx(wall_us, abs=MS)


@pytest.mark.parametrize("wall_us", [-2 * S, 2 * S])
def test_once_something_was_stamped_two_seconds_are_made_good_within_twenty_and_nothing_jumps(wall_us: int) -> None:
    world = World(wall_us)
    world.read()
    world.ask()
    assert world.off_us == pytest.approx(wall_us, abs=MS)
    world.run(10)
    assert world.off_us == pytest.approx(wall_us / 2, abs=3 * MS)
    world.run(10.1)
    assert abs(world.off_us) <= MS


def test_a_step_of_the_walls_of_this_machine_is_none_of_the_clocks() -> None:
    world = World()
    world.ask()
    world.run(3)
    before = world.off_us
    world.wall_us = 3_600 * S
    world.clock.follow_wall(world.steady, world.wall)
    world.now += 5 * S
    assert world.off_us == pytest.approx(before, abs=MS)
    assert world.clock.wall_offset(world.steady, world.wall) == pytest.approx(3_600 * S, abs=2 * MS)


@pytest.mark.parametrize("step_us", [-2 * S, 2 * S])
def test_a_step_of_the_reference_is_followed_as_slowly(step_us: int) -> None:
    world = World()
    world.ask()
    world.run(5)
    world.reference_us = step_us
    world.ask()
    assert world.clock.error(world.steady) == pytest.approx(-step_us, abs=2 * MS)
    world.run(20.1)
    assert abs(world.off_us) <= MS
    rates = [(b - a) for a, b in pairwise(world.reads)]
    assert min(rates) >= 0


def test_while_the_reference_does_not_answer_at_all_the_wall_is_followed_without_a_jump() -> None:
    world = World()
    before = world.read()
    world.wall_us = -S
    for _ in range(11):
        world.now += S
        world.clock.follow_wall(world.steady, world.wall)
        assert world.read() > before
        before = world.reads[-1]
    assert world.reads[-1] == world.wall


def test_a_reference_that_has_answered_is_not_replaced_by_the_wall() -> None:
    world = World(wall_us=2 * S, drift=50)
    world.ask()
    for _ in range(600):
        world.now += S
        world.clock.follow_wall(world.steady, world.wall)
    assert abs(world.off_us) <= 600 * S * 50 // 1_000_000 + MS
    uncertainty = world.clock.uncertainty(world.steady)
    assert uncertainty is not None and uncertainty >= abs(world.off_us), "what it says of itself covers how far it is off"


@pytest.mark.parametrize("drift", [-150, 150])
def test_a_steady_clock_that_drifts_is_kept_right(drift: int) -> None:
    world = World(drift=drift)
    world.ask()
    world.run(600, every_us=5 * S)
    assert abs(world.off_us) <= 3 * MS


def test_wide_round_trips_spoil_nothing_that_is_known_better() -> None:
    world = World(drift=20)
    world.ask()
    for back_us in (800 * MS, 0, 2 * S, 300 * MS):
        world.now += S
        world.ask(out_us=2 * MS, back_us=back_us)
        assert abs(world.off_us) <= 4 * MS


def test_one_way_that_is_slow_deceives_by_no_more_than_is_said() -> None:
    world = World()
    world.ask(out_us=400 * MS, back_us=MS)
    uncertainty = world.clock.uncertainty(world.steady)
    assert uncertainty is not None and MS < abs(world.off_us) <= uncertainty <= 202 * MS
    world.ask(out_us=MS, back_us=400 * MS)
    narrower = world.clock.uncertainty(world.steady)
    assert narrower is not None and narrower <= 3 * MS, "two one-sided measurements bound it from both sides"


def test_it_never_goes_back_and_its_rate_is_bounded_whatever_is_measured() -> None:
    rng = Random(7)
    world = World(wall_us=S)
    taken: list[tuple[int, int]] = []
    for _ in range(3_000):
        match rng.randrange(6):
            case 0:
                world.ask(rng.randrange(3 * S), rng.randrange(3 * S))
            case 1:
                world.reference_us += rng.randint(-3 * S, 3 * S)
            case 2:
                world.wall_us = rng.randint(-3 * S, 3 * S)
                world.clock.follow_wall(world.steady, world.wall)
            case _:
                world.now += rng.choice((0, 1, 9, 11, 1_000, 90_000))
        taken.append((world.steady, world.read()))
    for (steady, time), (later, after) in pairwise(taken):
        assert abs((after - time) - (later - steady)) <= (later - steady) // SLEW + 1


def test_questions_become_rare() -> None:
    assert [pause_us(count) for count in (1, 9, 10, 1_000)] == [S, S, 5 * S, 5 * S]
