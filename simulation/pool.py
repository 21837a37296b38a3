"""Processes that run seeds side by side."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor

import pyarrow as pa

UNCOLLECTED = 200_000
"""Objects that a process allocates before Python looks for cycles among them. A run has few, and looking often is a tenth of
its time."""


def make_pool(processes: int) -> ProcessPoolExecutor:
    """A pool of prepared processes. They end with this process, however it ends."""
    # Spawned, not forked: Arrow's threads do not survive a fork.
    return ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), initializer=_begin)


def prepare() -> None:
    """Set this process up for many short runs."""
    pa.set_cpu_count(1)  # batches are small, and there is a process for each core
    gc.set_threshold(UNCOLLECTED)
    gc.collect()
    gc.freeze()  # what the imports made is never looked through again


def _begin() -> None:
    prepare()
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed closes nothing: its processes would wait for more seeds for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a pool has made this process"
    parent.join()
    os._exit(1)
