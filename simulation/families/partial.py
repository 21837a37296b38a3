"""The content of tentative results: are they the results of the rows that were there, and do they name the missing streams?"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from simulation.drawing import PlanOptions, make_plan, settle
from simulation.queries import Menu
from simulation.scenario import MILLISECOND, SECOND, Families, Scenario
from simulation.strikes import Strike


def _partial(seed: int, family: str, rng: Random) -> Scenario:
    """One stream, or two in turn, is cut for longer than X and some windows, of a query in one fragment."""
    wish = PlanOptions(
        replicas=(1, 2),
        streams=(2, 3),
        menu=Menu(joins=False, unbounded=False),
        holds=("delay", "process"),
        x_ms=(600, 1000),
        is_comfortable=True,
        seconds=(2.4, 3.2),
        shapes=("single",),
    )
    query = make_plan(rng, wish)
    scenario = settle(seed, family, rng, query, wish)
    names = sorted(scenario.feeds)
    at = rng.randrange(150_000, 400_000)
    victims = [rng.choice(names)] if rng.random() < 0.7 else rng.sample(names, 2)
    strikes = []
    for victim in victims:
        strikes.append(Strike("cut_stream", at, rng.randint(1_200, 2_000) * MILLISECOND, victim))
        at += rng.randrange(SECOND)
    return replace(scenario, strikes=tuple(strikes))


FAMILIES: Families = {"partial": (6, _partial)}
