"""Some hundred seeds of the simulator, and those beyond that once broke something: no violation. `make simulate` runs more."""

from __future__ import annotations

import pytest

from simulation.campaign import ScenarioJudge, run_seed
from simulation.families import make_family_scenario, pauses
from tests.thoroughness import every, some

SEEDS = some(300, 20)
CHUNK = 15
OF_A_FAMILY = some(50, 25)
ONCE_BROKEN = (
    *(1013, 1328, 1415, 1851, 2150, 2315, 2317, 2356, 2623, 3032, 3497, 3582, 3596, 4005, 4422, 5052, 5385, 5477, 5914, 6142),
    *(6513, 6601, 6746, 7087, 7201, 7238, 7482, 7803, 7808, 8489, 8620, 8621, 9521, 10986, 11176, 11210, 11360, 12315, 12549),
    *(13602, 14304, 15574, 16806, 17123, 18435, 18557, 19643, 19798),
)
BROKEN_BY = (
    ("jumps", 90, "leave_rows_stranded"),
    ("long", 51, "ask_below_what_was_acknowledged"),
    ("overtaken", 40, "read_between_a_time_and_one_before_it"),
    ("ended", 101, "heal_beyond_all_input"),
    ("backlog", 0, "starve_while_events_wait"),
    ("shared", 0, "give_a_fixed_alpha_to_all"),
    ("early", 0, "take_an_early_answer_for_a_failure"),
    ("early", 1, "undo_early_answers_one_by_one"),
    ("clocks", 5, "keep_the_clock_of_the_start"),
    ("behind", 1, "believe_in_the_own_clock"),
    ("heavy", 0, "copy_at_the_deadline"),
    ("idle", 0, "take_an_early_answer_for_a_failure"),
    ("trailing", 13, "stay_with_one_that_lags"),
    ("exact", 0, "make_doubles_of_decimals_by_a_product"),
)
"""Of a family, a seed that once broke, and what it was that broke it."""


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_seed_breaks_an_invariant(first: int) -> None:
    verdicts = [run_seed(seed) for seed in range(first, first + CHUNK)]
    broken = [f"seed {v.seed}: {v.violations[0].invariant} {v.violations[0]}" for v in verdicts if v.violations]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("family", pauses.FAMILIES)
def test_no_seed_of_a_family_that_few_seeds_draw_breaks_an_invariant(family: str) -> None:
    verdicts = {seed: ScenarioJudge(make_family_scenario(family, seed)).judge() for seed in range(OF_A_FAMILY)}
    broken = [f"seed {seed}: {v.violations[0]}" for seed, v in verdicts.items() if v.violations]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("seed", every(6, ONCE_BROKEN))
def test_what_once_broke_stays_mended(seed: int) -> None:
    assert run_seed(seed).violations == []


@pytest.mark.parametrize(("family", "seed", "mutant"), every(4, BROKEN_BY))
def test_what_once_broke_a_family_stays_mended(family: str, seed: int, mutant: str) -> None:
    measure = ScenarioJudge(make_family_scenario(family, seed))
    assert measure.judge().violations == []
    assert measure.judge(mutant).violations
