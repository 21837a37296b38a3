"""Progress of the hosts in Spark's Python workers. They send it to the driver with each batch, through an accumulator of
Spark."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

import psutil
from pyspark.accumulators import AccumulatorParam

from reconcile.remote import Rebuild


@dataclass(frozen=True, slots=True)
class WorkerUsage:
    """The memory of a Python worker at its last report."""

    name: str
    """Its machine and process: HOST/PID."""
    rss_bytes: int
    """Its resident memory, in bytes."""


@dataclass(frozen=True, slots=True)
class HostProgress:
    """The progress of one operator host. A host reports counts since its last report; the driver adds them up."""

    worker: WorkerUsage
    """The Python worker that it runs in."""
    rows: int
    """Input rows processed."""
    rebuilds: int
    """How often its state was rebuilt."""
    last_rebuild: Rebuild | None
    """The last rebuild; None if there was none."""
    last_rebuild_s: float | None
    """How long that took, in seconds."""
    state_bytes: int
    """The size of the state, in bytes."""
    versions_bytes: int
    """The size of the copies and overlays of the state, in bytes."""

    def after(self, earlier: HostProgress) -> HostProgress:
        """The sum of this report and an earlier one."""
        if self.last_rebuild is None:
            rebuild, took_s = earlier.last_rebuild, earlier.last_rebuild_s
        else:
            rebuild, took_s = self.last_rebuild, self.last_rebuild_s
        return replace(
            self,
            rows=earlier.rows + self.rows,
            rebuilds=earlier.rebuilds + self.rebuilds,
            last_rebuild=rebuild,
            last_rebuild_s=took_s,
        )

    def facts(self) -> dict[str, Any]:
        """As JSON, for a job's status."""
        rebuild = self.last_rebuild
        return {
            "rows": self.rows,
            "state_bytes": self.state_bytes,
            "versions_bytes": self.versions_bytes,
            "rebuilds": self.rebuilds,
            "last_rebuild_s": self.last_rebuild_s,
            "last_rebuild_cause": rebuild and rebuild.cause.value,
            "last_rebuild_orders": rebuild and rebuild.orders,
        }


ProgressByPartition = Mapping[int, HostProgress]
"""The progress of each host, by the partition of its orders."""


Key = TypeVar("Key")


class ProgressAccumulator(AccumulatorParam[Mapping[Key, HostProgress]]):
    """Adds reports of hosts, by any key, to earlier ones."""

    def zero(self, value: Mapping[Key, HostProgress]) -> Mapping[Key, HostProgress]:
        return {}

    def addInPlace(
        self, value1: Mapping[Key, HostProgress], value2: Mapping[Key, HostProgress]
    ) -> Mapping[Key, HostProgress]:
        """A new mapping, because another thread may be reading the old one."""
        later = {p: report.after(value1[p]) if p in value1 else report for p, report in value2.items()}
        return {**value1, **later}


def this_worker() -> WorkerUsage:
    """The usage of this process."""
    return WorkerUsage(_name(), psutil.Process().memory_info().rss)


def rss_bytes(pid: int | None = None) -> int | None:
    """The resident memory of a process on this machine, in bytes; None if it has ended. pid: None for this process."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return None


@cache
def _name() -> str:
    return f"{socket.gethostname()}/{os.getpid()}"
