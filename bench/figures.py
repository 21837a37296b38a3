"""The output of every benchmark: named figures with a unit and, if one is set, a target and whether it is met."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from datetime import date
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """One measured number."""

    name: str
    """What was measured, for people."""
    value: float
    """In `unit`."""
    unit: str
    """Such as "ms" or "tuples/s"."""
    target: float | None = None
    """The least allowed value, or the largest if `lower_is_better`; None: there is no target."""
    lower_is_better: bool = False
    """False for rates, True for times."""

    @property
    def holds(self) -> bool | None:
        """Whether the target is met; None if there is none."""
        if self.target is None:
            return None
        return self.value <= self.target if self.lower_is_better else self.value >= self.target


def as_report(name: str, figures: list[Figure]) -> dict[str, Any]:
    """A benchmark's result as JSON, as the contract defines it."""
    return {
        "name": name,
        "machine": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "date": date.today().isoformat(),
        "figures": [
            {"name": f.name, "value": round(f.value, 3), "unit": f.unit, "target": f.target, "holds": f.holds} for f in figures
        ],
    }


def print_table(report: dict[str, Any]) -> None:
    """Print a report as a table on standard output."""
    table = Table(title=f"bench {report['name']}  ({report['cores']} core(s), {report['date']})")
    for column in ("figure", "value", "unit", "target", "holds"):
        table.add_column(column, justify="right" if column in ("value", "target") else "left")
    for figure in report["figures"]:
        holds = {True: "yes", False: "NO", None: ""}[figure["holds"]]
        target = "" if figure["target"] is None else f"{figure['target']:g}"
        table.add_row(figure["name"], f"{figure['value']:,.2f}", figure["unit"], target, holds)
    Console().print(table)
