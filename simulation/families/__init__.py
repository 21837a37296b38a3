"""The families of scenarios, with a module for each kind of question; and the scenario of a seed. A family is
`(seed, its name, rng) -> Scenario`; a module's FAMILIES gives each its weight.

Touches nothing: chance is the generator that is passed in.
"""

from __future__ import annotations

from random import Random

from simulation.families import basic, clocks, limits, partial, paths, pauses
from simulation.hindrances import (
    maybe_ahead,
    maybe_calm,
    maybe_hindered,
    maybe_loaded,
    maybe_near,
    maybe_remote,
    maybe_second_site,
)
from simulation.obligations import with_obligations
from simulation.scenario import Families, Scenario

FAMILIES: Families = {
    **basic.FAMILIES,
    **partial.FAMILIES,
    **paths.FAMILIES,
    **limits.FAMILIES,
    **clocks.FAMILIES,
}
EVERY_FAMILY: Families = {**FAMILIES, **pauses.FAMILIES}

RECENT_SHARE = 1 / 12
"""The share of seeds whose scenario is of the family `recent`."""
OWN_SHARE = 1 / 20
"""The share of seeds whose scenario is of the family `own`."""
EXACT_SHARE = 1 / 20
"""The share of seeds whose scenario is of the family `exact`."""
PAUSING_SHARE = 1 / 12
"""The share of seeds whose scenario is of a family of `pauses`."""
FIRST_PAUSING = 1_000
"""The seeds below keep their scenarios: hunts for mutants begin there."""


def make_scenario(seed: int) -> Scenario:
    """The scenario of a seed; the same in every process."""
    rng = Random(seed)
    family = rng.choices(list(FAMILIES), [weight for weight, _ in FAMILIES.values()])[0]
    # Draws of their own, which choose no seed that docs/mutants.md or a test names: those keep their scenarios.
    if Random(f"operators difference {seed}").random() < RECENT_SHARE:
        family = "recent"
    if Random(f"operators of one's own 24 {seed}").random() < OWN_SHARE:
        family = "own"
    if Random(f"decimals and dates 31 {seed}").random() < EXACT_SHARE:
        family = "exact"
    pausing = Random(f"pauses 9014 {seed}")
    if seed >= FIRST_PAUSING and pausing.random() < PAUSING_SHARE:
        family = pausing.choices(list(pauses.FAMILIES), [weight for weight, _ in pauses.FAMILIES.values()])[0]
    drawn = maybe_second_site(EVERY_FAMILY[family][1](seed, family, rng))
    if seed >= FIRST_PAUSING:
        drawn = maybe_near(maybe_loaded(maybe_calm(drawn)))
    return with_obligations(maybe_hindered(maybe_remote(maybe_ahead(drawn))))


def make_family_scenario(family: str, seed: int) -> Scenario:
    """The scenario that a family draws from a seed, without the additions of `simulation.hindrances`."""
    return with_obligations(EVERY_FAMILY[family][1](seed, family, Random(seed)))
