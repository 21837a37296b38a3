"""Whose clock eats what X leaves, by what processes say of themselves. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from deployment.clock import SLEW

ProcessStatus = Mapping[str, Any]

WARN_FROM = 1 / 4
"""Of the time that a bucket may be held back on right clocks."""

FIX = "synchronise the clocks of the machines, with chrony or another NTP client"


@dataclass(frozen=True, slots=True)
class ClockWarning:
    """process: whose clock it is; skew_ms: how far it is off."""

    process: str
    skew_ms: float
    text: str


def clock_warnings(statuses: Mapping[str, ProcessStatus]) -> list[dict[str, Any]]:
    """statuses: by process. Those whose skew is more than a quarter of what X leaves, as they go into a status."""
    smallest: dict[str, float] = {}
    for process, status in statuses.items():
        query = _query_of(process)
        smallest[query] = min(smallest.get(query, float("inf")), _alpha_x_ms(status))
    found = (warning for name, status in sorted(statuses.items()) for warning in _of(name, status, smallest[_query_of(name)]))
    return [asdict(warning) for warning in found]


def _of(process: str, status: ProcessStatus, query_alpha_ms: float) -> Iterator[ClockWarning]:
    """What was seen of it in band, and what it has measured itself."""
    alpha_ms = min(_alpha_x_ms(status), query_alpha_ms)
    behind_ms = max((float(found) for found in _seen(status)), default=0.0)
    # What was seen has been taken off alpha*X already.
    if behind_ms > WARN_FROM * (alpha_ms + behind_ms):
        text = (
            f"its clock is {behind_ms:,.0f} ms behind one that stamps what it reads, which leaves {alpha_ms:,.0f} ms "
            f"to wait for what is late (alpha_x_ms): {FIX}"
        )
        yield ClockWarning(process, behind_ms, text)
    error_ms = status.get("clock_error_ms")
    if error_ms is not None and abs(error_ms) > WARN_FROM * alpha_ms:
        where = "ahead of" if error_ms > 0 else "behind"
        text = (
            f"its clock is {abs(error_ms):,.0f} ms {where} the home site's, and is made right within "
            f"{abs(error_ms) / 1_000 * SLEW:,.0f} s; X leaves {alpha_ms:,.0f} ms to wait for what is late (alpha_x_ms): "
            f"{FIX}, or start the process again to set its clock at once"
        )
        yield ClockWarning(process, abs(error_ms), text)


def _query_of(process: str) -> str:
    """The second part of a process's name."""
    return process.split(".")[1] if "." in process else ""


def _alpha_x_ms(status: ProcessStatus) -> float:
    """The least of a process; infinite where it waits for nothing."""
    said = [entry.get("alpha_x_ms") for entry in (*status.get("instances", ()), status)]
    return min((float(alpha) for alpha in said if alpha is not None), default=float("inf"))


def _seen(status: ProcessStatus) -> Iterator[float]:
    yield float(status.get("skew_ms") or 0)
    for entry in status.get("instances", ()):
        yield from (float(link.get("skew_ms") or 0) for link in entry.get("inputs", ()))
