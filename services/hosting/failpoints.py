"""Named places where a test can kill a process, so that a death between two effects is tested (R32).

BOREAL_FAILPOINT=NAME kills the process (SIGKILL) the first time that it passes NAME, NAME:3 the third time.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from functools import cache

NAMES = {
    "node.before_append": "a step is computed, nothing of it is logged yet",
    "node.between_appends": "some frames of a step are logged, others are not",
    "node.before_order": "an order for an operator host in another process is due, and not given",
    "node.before_acknowledge": "all of a step is logged, its inputs are not yet acknowledged",
    "node.before_checkpoint": "a checkpoint is made, and not yet in the store",
    "node.after_checkpoint": "a checkpoint is in the store, but the instance does not know it yet",
    "egress.before_out": "a frame's records are made, none of them is sent yet",
    "egress.between_out_and_stable": "q.out has some stable rows, q.stable has not",
    "egress.between_out_and_latest": "a frame's records are sent to q.out, q.latest is not changed yet",
    "egress.before_commit": "stable rows are sent to q.stable, and not committed",
    "egress.after_commit": "stable rows are on q.stable, and the egress does not know it yet",
    "egress.before_takeover": "q.out has all rows of a version, and not the boundary that ends it",
    "egress.after_takeover": "the boundary that ends a version is sent, and the egress has not ended",
    "monitor.before_evolution": "the monitor has decided on the next step of an evolution, and not written it",
    "monitor.after_evolution": "the next step of an evolution is written, and the monitor does not know it yet",
    "source.started": "a new incarnation has written START, and nothing else",
    "source.letters_sent": "Kafka has the dead letters of a batch, the batch is not announced yet",
    "source.between_announcements": "a batch is announced in the first of the stream's logs only",
    "source.announced": "a batch is announced in all logs, none has its rows",
    "source.between_logs": "one of the logs has the rows of a batch, the next does not",
}
"""Every failpoint, and the state of the process when it passes the point."""

_passes: Counter[str] = Counter()


@cache
def wanted() -> tuple[str, int]:
    """The failpoint that kills this process, '' for none, and at which pass. Read once: points are passed with each frame."""
    name, _, times = os.environ.get("BOREAL_FAILPOINT", "").partition(":")
    return name, int(times or 1)


def failpoint(name: str) -> None:
    """Kill the process if BOREAL_FAILPOINT names this point and this is the pass it asks for."""
    point, times = wanted()
    if name != point:
        return
    _passes[name] += 1
    if _passes[name] >= times:
        os.kill(os.getpid(), signal.SIGKILL)
