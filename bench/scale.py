"""`boreal bench scale`: what one more query costs while nothing happens, on a local stack of this machine.

The departures query of `bench.idle`, several times under other names, on the same topics: with a process for each role, and
with workers. The processes of the stack itself (broker, monitor, supervisor, API) are measured beside those of the queries,
since each query gives them work too.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.departures_stack import DeparturesStack, departures_stack
from bench.figures import Figure, as_report
from bench.idle import MEASURE_S, SETTLE_S
from bench.processor_time import processor_time

WORKERS = 2
QUERIES = 8
"""Run on workers; with a process for each role, two bring this machine to its limit."""
HOSTING = ("source", "node", "egress")


@dataclass(frozen=True)
class Taken:
    """What all processes of some kind take together."""

    cores: float
    """Processor time, in seconds per second."""
    megabytes: float
    """Resident memory."""
    processes: int
    """How many there are."""
    threads: int
    """How many they have."""


def main() -> dict[str, Any]:
    """Measure it; five minutes."""
    return as_report("scale", [*_figures("own processes", 0, 2), *_figures(f"{WORKERS} workers", WORKERS, QUERIES)])


def _figures(title: str, workers: int, queries: int) -> Iterator[Figure]:
    with (
        tempfile.TemporaryDirectory(prefix="boreal-bench-") as folder,
        departures_stack(ScaleStack, Path(folder), workers) as (stack, _),
    ):
        stack.apply("q0", {})
        one = stack.taken()
        for kind, taken in one.items():
            yield Figure(f"{title}, 1 query: {kind}", taken.cores, "cores")
        yield Figure(f"{title}, 1 query: processes of roles", one["roles"].processes, "processes")
        yield Figure(f"{title}, 1 query: memory of roles", one["roles"].megabytes, "MB")
        seconds = [stack.apply(f"q{number}", {}) for number in range(1, queries)]
        all_ = stack.taken()
        more = queries - 1
        for kind in sorted(one.keys() & all_.keys()):
            yield Figure(f"{title}, each further query: {kind}", (all_[kind].cores - one[kind].cores) / more, "cores")
        roles, first = all_["roles"], one["roles"]
        yield Figure(f"{title}, each further query: processes", (roles.processes - first.processes) / more, "processes")
        yield Figure(f"{title}, each further query: threads", (roles.threads - first.threads) / more, "threads")
        yield Figure(f"{title}, each further query: memory", (roles.megabytes - first.megabytes) / more, "MB")
        yield Figure(f"{title}, query {queries}: apply until live", seconds[-1], "s")


class ScaleStack(DeparturesStack):
    """Says what its processes take."""

    def taken(self) -> dict[str, Taken]:
        """What runs takes, by kind: the roles of queries together, and each process of the stack."""
        time.sleep(SETTLE_S)
        state = self.state
        kinds = {process["pid"]: process["kind"] for process in state["processes"]}
        supervisor = psutil.Process(state["supervisor"]["pid"])
        kinds |= {child.pid: "spare" for child in supervisor.children() if child.pid not in kinds}
        kinds[supervisor.pid] = "supervisor"
        processes = {psutil.Process(pid): kind for pid, kind in kinds.items()}
        before = {process: processor_time(process) for process in processes}
        time.sleep(MEASURE_S)
        found: dict[str, list[tuple[float, float, int]]] = {}
        for process, kind in processes.items():
            cores = (processor_time(process) - before[process]) / MEASURE_S
            taken = cores, process.memory_info().rss / 1e6, process.num_threads()
            found.setdefault("roles" if kind in HOSTING else kind, []).append(taken)
        return {
            kind: Taken(sum(c for c, _, _ in of), sum(m for _, m, _ in of), len(of), sum(t for _, _, t in of))
            for kind, of in sorted(found.items())
        }
