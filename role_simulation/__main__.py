"""`python -m role_simulation`: runs seeds, and shows those whose results are wrong. Exit code 1 if there are any."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from role_simulation.mutants import MUTANTS
from role_simulation.run import RoleRun, run_scenario
from role_simulation.scenario import OF_A_WORKER, draw, draw_joined, with_faults_of
from simulation.mutants import mutated


def judge(seed: int, mutant: str | None = None, is_joined: bool = False, kind: str | None = None) -> RoleRun:
    """Run a seed. kind: of all its faults; None: as they are drawn."""
    logging.disable(logging.CRITICAL)
    drawn = (draw_joined if is_joined else draw)(seed)
    with mutated(mutant, MUTANTS):
        return run_scenario(drawn if kind is None else with_faults_of(kind, drawn))


def main() -> int:
    """Run the seeds that the command line names."""
    options = argparse.ArgumentParser(prog="python -m role_simulation", description=__doc__)
    options.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    options.add_argument("--first", type=int, default=0, help="the first of them")
    options.add_argument("--mutant", help=f"a seeded bug: {', '.join(MUTANTS)}")
    options.add_argument("--joined", action="store_true", help="workers have joined their sites, and a supervisor places roles")
    options.add_argument("--faults", choices=OF_A_WORKER, help="several of this kind, in place of those that the seeds draw")
    options.add_argument("--digest", action="store_true", help="say what came to pass, in a digest of all topics")
    options.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    asked = options.parse_args()
    seeds = range(asked.first, asked.first + asked.seeds)
    wrong = 0
    with ProcessPoolExecutor(asked.processes) as pool:
        work = partial(judge, mutant=asked.mutant, is_joined=asked.joined, kind=asked.faults)
        for seed, run in zip(seeds, pool.map(work, seeds), strict=True):
            wrong += bool(run.problems)
            if asked.digest:
                print(f"seed {seed}: digest {run.digest}", flush=True)
            for problem in run.problems:
                print(f"seed {seed}: {problem}", flush=True)
    print(f"{len(seeds)} seeds, {wrong} of them wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets is part of a course of events.
        os.execve(
            sys.executable, [sys.executable, "-m", "role_simulation", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    sys.exit(main())
