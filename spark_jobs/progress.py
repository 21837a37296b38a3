"""What the hosts in Spark's Python workers tell the driver of themselves, with each batch, over an accumulator of Spark's."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import psutil
from pyspark.accumulators import AccumulatorParam

from reconcile.remote import Rebuild


@dataclass(frozen=True, slots=True)
class WorkerUsage:
    """A Python worker, and the memory that it had when it last told. name: its machine and process."""

    name: str
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class HostProgress:
    """How one operator host gets on. rows, rebuilds: since it last told, as it tells it; since the job began, as the driver
    adds it up. state_bytes: of the state; versions_bytes: of the copies and overlays beside it."""

    worker: WorkerUsage
    rows: int
    rebuilds: int
    last_rebuild: Rebuild | None
    last_rebuild_s: float | None
    state_bytes: int
    versions_bytes: int

    def after(self, earlier: HostProgress) -> HostProgress:
        """This one, as what follows on an earlier one."""
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
        """As a job's status has it."""
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
"""By the partition of its orders."""


class ProgressAccumulator(AccumulatorParam[ProgressByPartition]):
    """How what is told is added to what was told before."""

    def zero(self, value: ProgressByPartition) -> ProgressByPartition:
        return {}

    def addInPlace(self, value1: ProgressByPartition, value2: ProgressByPartition) -> ProgressByPartition:
        """Another mapping, for somebody may be reading the one there is."""
        later = {p: told.after(value1[p]) if p in value1 else told for p, told in value2.items()}
        return {**value1, **later}


def this_worker() -> WorkerUsage:
    return WorkerUsage(_name(), psutil.Process().memory_info().rss)


def rss_bytes(pid: int | None = None) -> int | None:
    """The memory of a process of this machine, of this one by default; None once it has ended."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return None


@cache
def _name() -> str:
    return f"{socket.gethostname()}/{os.getpid()}"
