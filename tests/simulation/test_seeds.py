"""A thousand seeds of the simulator, and no violation."""

from __future__ import annotations

import pytest

from simulation.campaign import run_seed

SEEDS = 1_000
CHUNK = 50


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_seed_breaks_an_invariant(first: int) -> None:
    verdicts = [run_seed(seed) for seed in range(first, first + CHUNK)]
    broken = [f"seed {v.seed}: {v.violations[0].invariant} {v.violations[0]}" for v in verdicts if v.violations]
    assert not broken, "\n".join(broken)
