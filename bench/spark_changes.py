"""The operator host with its state kept by Spark, as changes: what `bench.spark_state` measures our own way against.

transformWithStateInPandas, one key for each instance. Spark's state is a list of what has changed, here the orders themselves,
and the whole state as it was before them, in pieces; once the changes are larger than that, the whole is written anew. The host
lives in the Python worker, and is made of both where the worker is another one.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pandas as pd
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from boreal.query.spec import load_query
from deployment.layout import make_layout
from reconcile.remote import RemoteHost
from spark_jobs.worker import Task

PIECE_BYTES = 1 << 20

_hosts: dict[int, tuple[int, RemoteHost]] = {}
"""By partition: how many orders the host has obeyed, and the host."""


class StateAsChanges(StatefulProcessor):
    """Rows (partition, offset, value) in, answers (partition, value) out."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._place = handle.getValueState("place", "orders long, whole long, changed long")
        self._whole = handle.getListState("whole", "piece binary")
        self._changes = handle.getListState("changes", "change binary")
        _settle()

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        partition = int(key[0])
        obeyed, whole, changed = self._place.get() or (0, 0, 0)
        host = self._host(partition, obeyed)
        orders = [bytes(value) for frame in rows for value in frame.sort_values("offset")["value"]]
        answers = [answer for order in orders if (answer := host.take(order, None)) is not None]
        self._changes.appendList([(order,) for order in orders])
        changed += sum(len(order) for order in orders)
        if changed > whole and (snapshot := host.save()) is not None:
            self._whole.put([(snapshot[start : start + PIECE_BYTES],) for start in range(0, len(snapshot), PIECE_BYTES)])
            self._changes.clear()
            whole, changed = len(snapshot), 0
        self._place.update((obeyed + len(orders), whole, changed))
        _hosts[partition] = obeyed + len(orders), host
        yield pd.DataFrame({"partition": [partition] * len(answers), "value": answers}).astype({"partition": "int32"})

    def close(self) -> None:
        """Nothing to let go of."""

    def _host(self, partition: int, obeyed: int) -> RemoteHost:
        count, host = _hosts.get(partition, (-1, None))
        if host is not None and count == obeyed:
            return host
        layout = make_layout(load_query(json.loads(self._task.spec)), self._task.sites)
        who = layout.remote_instances(self._task.replica)[partition]
        host = RemoteHost(layout.plan.fragment(who.fragment), _no_checkpoints)
        pieces = [piece for (piece,) in self._whole.get()]
        if pieces:
            host.restore(b"".join(pieces))
        for (change,) in self._changes.get():
            host.take(change, None)
        return host


@cache
def _settle() -> None:
    """As `spark_jobs.worker` does: what is loaded by now is not looked through for garbage after every task."""
    gc.collect()
    gc.freeze()


def _no_checkpoints(owner: str, number: int) -> bytes:
    raise KeyError((owner, number))
