"""The roles of workers, threads and all, over a simulated Kafka: seeds whose results must be right, seeded bugs that some seed
must show, and the same course of events each time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from random import Random

import pytest

from role_simulation import run, scheduler, threads
from role_simulation.mutants import MUTANTS
from role_simulation.run import RoleRun, run_scenario
from role_simulation.scenario import draw
from role_simulation.scheduler import ProcessKilled, Scheduler, SimulatedProcess, Stuck
from simulation.mutants import mutated

CAUGHT_AT: dict[str, int] = {}
"""A seed that shows each mutant."""


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: the order of its sets does not differ from run to run."""
    command = [sys.executable, "-m", "role_simulation", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "0"}, check=False)


def test_the_results_of_some_seeds_are_right() -> None:
    done = simulate("--seeds", "6", "--processes", "2")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.soak
def test_the_results_of_many_seeds_are_right() -> None:
    done = simulate("--first", "6", "--seeds", "150")
    assert done.returncode == 0, done.stdout + done.stderr
