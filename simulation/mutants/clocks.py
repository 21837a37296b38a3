"""Clocks: what processes agree on, and what is taken off for what they do not."""

from __future__ import annotations

from deployment.clock import SharedClock
from reconcile.links import Link
from simulation.mutants.registry import Patch, mutant


@mutant
def keep_the_clock_of_the_start(patch: Patch) -> None:
    """A process's clock stays as its machine's wall had it when the process began: nobody asks the broker."""
    patch(SharedClock, "take", lambda _: lambda self, *measured: None)


@mutant
def believe_in_the_own_clock(patch: Patch) -> None:
    """That a clock is behind those that stamp what it reads is not taken off alpha*X (R9)."""
    patch(Link, "compare_clocks", lambda _: lambda self, boundary, now: None)
