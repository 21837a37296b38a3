"""`boreal bench scale`: what one more query costs while nothing happens, on a local stack of this machine.

The departures query of `bench.idle`, several times under other names, on the same topics: with a process for each role, and
with workers. The processes of the stack itself (broker, monitor, supervisor, API) are measured beside those of the queries,
since each query gives them work too.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml
from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from bench.commands import Commands, stack_up
from bench.figures import Figure, as_report
from bench.idle import AIRPORTS, MEASURE_S, SETTLE_S, departures

WORKERS = 2
QUERIES = 8
"""Run on workers; with a process for each role, two bring this machine to its limit."""
HOSTING = ("source", "node", "egress")


@dataclass(frozen=True)
class _Taken:
    """What all processes of some kind take together."""

    cores: float
    megabytes: float
    processes: int
    threads: int


def main() -> dict[str, Any]:
    """Measure it; five minutes."""
    return as_report("scale", [*_figures("own processes", 0, 2), *_figures(f"{WORKERS} workers", WORKERS, QUERIES)])


def _figures(title: str, workers: int, queries: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="boreal-bench-") as folder, _stack(Path(folder), workers) as stack:
        stack.apply("q0")
        one = stack.taken()
        for kind, taken in one.items():
            yield Figure(f"{title}, 1 query: {kind}", taken.cores, "cores")
        yield Figure(f"{title}, 1 query: processes of roles", one["roles"].processes, "processes")
        yield Figure(f"{title}, 1 query: memory of roles", one["roles"].megabytes, "MB")
        seconds = [stack.apply(f"q{number}") for number in range(1, queries)]
        all_ = stack.taken()
        more = queries - 1
        for kind, taken in all_.items():
            yield Figure(f"{title}, each further query: {kind}", (taken.cores - one[kind].cores) / more, "cores")
        roles, first = all_["roles"], one["roles"]
        yield Figure(f"{title}, each further query: processes", (roles.processes - first.processes) / more, "processes")
        yield Figure(f"{title}, each further query: threads", (roles.threads - first.threads) / more, "threads")
        yield Figure(f"{title}, each further query: memory", (roles.megabytes - first.megabytes) / more, "MB")
        yield Figure(f"{title}, query {queries}: apply until live", seconds[-1], "s")


class _Stack(Commands):
    """A stack whose queries have the same topics."""

    def apply(self, name: str) -> float:
        """Apply the query under this name; returns after how many seconds it was live."""
        path = self.data.parent / f"{name}.yaml"
        path.write_text(yaml.safe_dump(departures({}, name=name)))
        began = time.monotonic()
        self.run("query", "apply", str(path))
        return time.monotonic() - began

    def taken(self) -> dict[str, _Taken]:
        """What runs takes, by kind: the roles of queries together, and each process of the stack."""
        time.sleep(SETTLE_S)
        state = json.loads((self.data / "run" / "state.json").read_text())
        kinds = {process["pid"]: process["kind"] for process in state["processes"]}
        kinds[state["supervisor"]["pid"]] = "supervisor"
        before = {pid: _seconds(pid) for pid in kinds}
        time.sleep(MEASURE_S)
        found: dict[str, list[tuple[float, float, int]]] = {}
        for pid, kind in kinds.items():
            process, cores = psutil.Process(pid), (_seconds(pid) - before[pid]) / MEASURE_S
            taken = cores, process.memory_info().rss / 1e6, process.num_threads()
            found.setdefault("roles" if kind in HOSTING else kind, []).append(taken)
        return {
            kind: _Taken(sum(c for c, _, _ in of), sum(m for _, m, _ in of), len(of), sum(t for _, _, t in of))
            for kind, of in sorted(found.items())
        }


@contextmanager
def _stack(folder: Path, workers: int) -> Iterator[_Stack]:
    with stack_up(_Stack(folder / "data"), "--workers", str(workers)) as (stack, bootstrap):
        with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
            admin.create_topics([NewTopic(f"in.{name}", num_partitions=1, replication_factor=1) for name in AIRPORTS])
        yield stack


def _seconds(pid: int) -> float:
    """Processor time of a process."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system
