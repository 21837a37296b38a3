"""Clocks: the shared clock of processes, and the allowance for skew."""

from __future__ import annotations

from deployment.clock import SharedClock
from reconcile.links import Link
from simulation.mutants.registry import Patch, mutant


@mutant
def keep_the_clock_of_the_start(patch: Patch) -> None:
    """A process's clock stays as the machine's wall clock was at the start: the broker is never asked."""
    patch(SharedClock, "take", lambda _: lambda self, *measured: None)


@mutant
def believe_in_the_own_clock(patch: Patch) -> None:
    """The skew of a clock behind the stamps that it reads is not subtracted from alpha*X (R9)."""
    patch(Link, "compare_clocks", lambda _: lambda self, boundary, now: None)
