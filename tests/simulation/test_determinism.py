"""One seed gives one trace, byte for byte, in every process."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

import simulation.campaign as campaign
from simulation.campaign import simulate
from simulation.families import make_scenario
from simulation.run import observe
from tests.thoroughness import IS_THOROUGH

SEEDS = (1, 5, 13) if IS_THOROUGH else (1, 5)
SCRIPT = (
    "import sys\n"
    "from simulation.run import observe\n"
    "from simulation.families import make_scenario\n"
    "print([observe(make_scenario(int(seed)), with_digest=True).digest for seed in sys.argv[1:]])\n"
)


def _digests(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SCRIPT, *map(str, SEEDS)]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()


def test_the_same_seed_gives_the_same_trace() -> None:
    ours = str([observe(make_scenario(seed), with_digest=True).digest for seed in SEEDS])
    assert ours == _digests("1") == _digests("4242")


def test_different_seeds_give_different_traces() -> None:
    digests = [observe(make_scenario(seed), with_digest=True).digest for seed in SEEDS]
    assert len(set(digests)) == len(SEEDS)


@pytest.mark.soak
@pytest.mark.parametrize("mutant", [None, "order_by_arrival"])
def test_a_campaign_does_not_depend_on_how_many_processes_run_it(
    mutant: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "CHUNK", 3)
    seen: list[tuple[int, int]] = []
    alone = simulate(6, 3, mutant, processes=1, on_progress=lambda done, bad: seen.append((done, len(bad))))
    together = simulate(6, 3, mutant, processes=2)
    assert {**alone, "seconds": 0} == {**together, "seconds": 0}
    assert set(alone) == {"seeds", "first", "violations", "faults", "coverage", "seconds"}
    assert seen[-1] == (6, len(alone["violations"]))
    assert bool(alone["violations"]) is (mutant is not None)


@pytest.mark.soak
def test_a_campaign_that_is_killed_leaves_no_process_behind() -> None:
    command = [sys.executable, "-c", "from simulation.campaign import simulate; simulate(1_000_000, processes=2)"]
    with psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as killed:
        deadline = time.monotonic() + 60
        while not (pool := [each for each in killed.children() if each.cpu_times().user > 0.5]) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert pool, "it has begun"
        children = killed.children()
        killed.kill()
        _, left = psutil.wait_procs(children, timeout=20)
    assert left == []
