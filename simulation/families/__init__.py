"""The families of scenarios, a module for each kind of question; and how a seed becomes a scenario.

A family is `(seed, its name, rng) -> Scenario`; a module's FAMILIES gives each its weight.
"""

from __future__ import annotations

from random import Random

from simulation.families import basic, clocks, limits, paths
from simulation.hindrances import maybe_ahead, maybe_hindered, maybe_remote
from simulation.scenario import Families, Scenario

FAMILIES: Families = {**basic.FAMILIES, **paths.FAMILIES, **limits.FAMILIES, **clocks.FAMILIES}


def make_scenario(seed: int) -> Scenario:
    """The scenario of a seed; the same in every process."""
    rng = Random(seed)
    family = rng.choices(list(FAMILIES), [weight for weight, _ in FAMILIES.values()])[0]
    return maybe_hindered(maybe_remote(maybe_ahead(FAMILIES[family][1](seed, family, rng))))


