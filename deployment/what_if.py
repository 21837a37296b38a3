"""What each X would have shown clients of failures that are recorded: how many tentative rows, as a staircase over X. Pure.

A failure that is over within alpha*X shows nothing (R13). Under a smaller X, clients would have been given tentative rows for
what was ingested meanwhile, and those are at most as many as they were given stable, or as they were in fact given tentative.
So each number is a bound, not a forecast: an X may show less. Only a run of the recorded rows says it exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deployment.failures import Failure


@dataclass(frozen=True, slots=True)
class ThresholdStep:
    """What would have been shown from an X on, up to the next step's."""

    x_ms: float
    """X in milliseconds."""
    failures: int
    """Failures that would have been shown."""
    rows: int
    """Tentative rows, at most."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """What of X cannot be used to wait. Durations are milliseconds."""

    path_ms: float
    """What the operators, the rest of the path and clocks take."""
    completion_ms: float
    """A bucket and a boundary interval."""

    def x_for(self, alpha_x_ms: float) -> float:
        """The smallest X whose alpha*X is this long: a tenth of X, or a bucket and a boundary interval if that is more, is kept
        in reserve (R9)."""
        wanted = alpha_x_ms + self.path_ms
        return max(wanted / 0.9, wanted + self.completion_ms)

    @classmethod
    def measured(cls, x_ms: float, alpha_x_ms: float, completion_ms: float) -> Overhead:
        """As an X and its alpha*X show it."""
        return cls(max(x_ms - max(x_ms / 10, completion_ms) - alpha_x_ms, 0.0), completion_ms)


def staircase(failures: Sequence[Failure], overhead: Overhead) -> list[ThresholdStep]:
    """The steps, by rising X from 0; the last one shows nothing. Failures that are open, or that no input caused, are left
    out."""
    hidden_from: dict[float, list[int]] = {}
    for failure in failures:
        healed_ms = failure.healed_ms
        if failure.ended_ms is not None and failure.missing and healed_ms is not None:
            # The oldest bucket that waits may have begun a bucket and a boundary interval before the silence.
            lasted_ms = healed_ms - failure.begun_ms + overhead.completion_ms
            rows = max(failure.rows_undone, failure.rows_stable or 0)
            hidden_from.setdefault(round(overhead.x_for(lasted_ms), 3), []).append(rows)
    left = [sum(map(len, hidden_from.values())), sum(map(sum, hidden_from.values()))]
    steps = [ThresholdStep(0.0, left[0], left[1])]
    for x_ms, rows_of in sorted(hidden_from.items()):
        left = [left[0] - len(rows_of), left[1] - sum(rows_of)]
        steps.append(ThresholdStep(x_ms, left[0], left[1]))
    return steps
