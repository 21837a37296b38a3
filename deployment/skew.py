"""Warns of clocks whose skew uses up much of X, from the statuses of processes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from deployment.clock import SLEW

ProcessStatus = Mapping[str, Any]
"""A status record of a process, as parsed from JSON."""

WARN_FROM = 1 / 4
"""Warn of a skew above this share of the time for which a bucket may be held back with correct clocks."""

FIX = "synchronise the clocks of the machines, with chrony or another NTP client"


@dataclass(frozen=True, slots=True)
class ClockWarning:
    """A clock that is wrong by too much."""

    process: str
    """The process that uses the clock."""
    skew_ms: float
    """Error of the clock (ms), without sign."""
    text: str
    """Warning for people."""


def clock_warnings(statuses: Mapping[str, ProcessStatus]) -> list[dict[str, Any]]:
    """Warnings for the processes whose skew exceeds WARN_FROM, as JSON objects. statuses: by process."""
    smallest: dict[str, float] = {}
    for process, status in statuses.items():
        query = _query_of(process)
        smallest[query] = min(smallest.get(query, float("inf")), _alpha_x_ms(status))
    found = (warning for name, status in sorted(statuses.items()) for warning in _of(name, status, smallest[_query_of(name)]))
    return [asdict(warning) for warning in found]


def _of(process: str, status: ProcessStatus, query_alpha_ms: float) -> Iterator[ClockWarning]:
    """Warnings from the skew seen in band, and from the process's own measurement."""
    alpha_ms = min(_alpha_x_ms(status), query_alpha_ms)
    behind_ms = max((float(found) for found in _seen(status)), default=0.0)
    # The observed skew is already subtracted from alpha*X.
    if behind_ms > WARN_FROM * (alpha_ms + behind_ms):
        text = (
            f"its clock is {behind_ms:,.0f} ms behind the clock of one of its inputs, which leaves {alpha_ms:,.0f} ms "
            f"to wait for late rows (alpha_x_ms): {FIX}"
        )
        yield ClockWarning(process, behind_ms, text)
    error_ms = status.get("clock_error_ms")
    if error_ms is not None and abs(error_ms) > WARN_FROM * alpha_ms:
        where = "ahead of" if error_ms > 0 else "behind"
        text = (
            f"its clock is {abs(error_ms):,.0f} ms {where} the home site's, and will be corrected within "
            f"{abs(error_ms) / 1_000 * SLEW:,.0f} s; X leaves {alpha_ms:,.0f} ms to wait for late rows (alpha_x_ms): "
            f"{FIX}, or restart the process to set its clock at once"
        )
        yield ClockWarning(process, abs(error_ms), text)


def _query_of(process: str) -> str:
    """The second part of a process's name."""
    return process.split(".")[1] if "." in process else ""


def _alpha_x_ms(status: ProcessStatus) -> float:
    """The smallest alpha*X of a process (ms); infinite if it has none."""
    said = [entry.get("alpha_x_ms") for entry in (*status.get("instances", ()), status)]
    return min((float(alpha) for alpha in said if alpha is not None), default=float("inf"))


def _seen(status: ProcessStatus) -> Iterator[float]:
    yield float(status.get("skew_ms") or 0)
    for entry in status.get("instances", ()):
        yield from (float(link.get("skew_ms") or 0) for link in entry.get("inputs", ()))
