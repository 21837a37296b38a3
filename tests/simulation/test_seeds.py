"""A thousand seeds of the simulator, and those beyond that once broke something: no violation."""

from __future__ import annotations

import pytest

from simulation.campaign import run_seed

SEEDS = 1_000
CHUNK = 50
ONCE_BROKEN = (1328, 2150, 4005, 6601, 7087, 7238, 8621)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_seed_breaks_an_invariant(first: int) -> None:
    verdicts = [run_seed(seed) for seed in range(first, first + CHUNK)]
    broken = [f"seed {v.seed}: {v.violations[0].invariant} {v.violations[0]}" for v in verdicts if v.violations]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("seed", ONCE_BROKEN)
def test_what_once_broke_stays_mended(seed: int) -> None:
    assert run_seed(seed).violations == []
