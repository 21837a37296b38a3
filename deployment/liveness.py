"""Whether a query runs as its record says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Liveness:
    """Whether a query runs as its record says. A query that answers tentatively is live; one that is paused is not, and waits
    for nothing."""

    is_ready: bool
    """Whether all its processes run the current record and are ready."""
    waits_for: tuple[str, ...]
    """The names of the processes that are not ready yet."""
    states: Mapping[str, str]
    """The state of each instance, by its name."""
    missing: tuple[str, ...]
    """The inputs that are missing now."""
    problem: str | None = None
    """Why the record cannot run; None if it can."""
    least_x_ms: float = 0.0
    """The smallest X, in milliseconds, that the instances can keep according to recent measurements."""

    @property
    def is_stable(self) -> bool:
        return self.is_ready and all(state == "STABLE" for state in self.states.values())
