"""How much of a worker's load each role is, by the rows and the state that its status tells of. Pure.

A calm role counts 1. Rates and sizes change all the time, and a move costs a restart: so a weight stays until what is measured
is twice as much, or half.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from deployment.placer import LEAST_WEIGHT

ROWS_PER_S_OF_A_SOURCE = 3_000
"""So many rows a second cost a source, or an egress its results, as much as a calm role costs: 5 µs each, of 0.015 of a core
(docs/scale.md)."""
ROWS_PER_S_OF_A_NODE = 30_000
"""The same of a replica, whose rows come in frames."""
STATE_BYTES = 64 << 20
"""State of this size counts as much as a calm role: it has to be written, and kept."""
MEASURED_FOR_US = 10_000_000
"""Rates are measured over this time at least."""


class RoleWeights:
    """The weights of roles. Times are in us."""

    def __init__(self) -> None:
        self._weights: dict[str, int] = {}
        self._counted: dict[str, tuple[int, int]] = {}
        """Of each role that counts its rows: how many, and when."""
        self._rates: dict[str, dict[str, float]] = defaultdict(dict)
        """Of each query: the rows a second of each source."""

    def see(self, status: Mapping[str, Any], now: int) -> int:
        """Take the status of a source, a node or an egress; returns its weight. KeyError, TypeError or ValueError if it is
        malformed."""
        name, query = str(status["process"]), str(status["query"])
        match status["kind"]:
            case "source":
                rate = self._rate(name, int(status.get("rows", 0)), now)
                if rate is not None:
                    self._rates[query][name] = rate
                    self._measure(name, rate / ROWS_PER_S_OF_A_SOURCE)
            case "egress":
                rate = self._rate(name, int(status.get("new_rows", 0)), now)
                if rate is not None:
                    self._measure(name, rate / ROWS_PER_S_OF_A_SOURCE)
            case _:
                state = sum(int(entry["checkpoint_bytes"]) for entry in status["instances"])
                self._measure(name, sum(self._rates[query].values()) / ROWS_PER_S_OF_A_NODE + state / STATE_BYTES)
        return self._weights.get(name, LEAST_WEIGHT)

    def forget(self, name: str) -> None:
        """A role is no more."""
        self._weights.pop(name, None)
        self._counted.pop(name, None)
        for query, rates in list(self._rates.items()):
            rates.pop(name, None)
            if not rates:
                del self._rates[query]

    def _rate(self, name: str, rows: int, now: int) -> float | None:
        """Rows a second since they were last counted; None if that was just now, or never, or in an earlier incarnation."""
        before, at = self._counted.get(name, (rows, now))
        if rows < before or name not in self._counted:
            self._counted[name] = rows, now
            return None
        if now - at < MEASURED_FOR_US:
            return None
        self._counted[name] = rows, now
        return (rows - before) * 1e6 / (now - at)

    def _measure(self, name: str, more: float) -> None:
        """A role is so much more than a calm one."""
        before, measured = self._weights.get(name, LEAST_WEIGHT), LEAST_WEIGHT + more
        if not before / 2 < measured < before * 2:
            self._weights[name] = round(measured)
