"""Which places a new life may begin at, by what the logs of its inputs hold."""

from __future__ import annotations

import pyarrow as pa
import pytest

from boreal.model.frames import Anchor, Boundary, Data, LogId, Origin, Start
from logs.log import Log
from logs.memory_log import MemoryLogStore
from logs.restart import restarts
from reconcile.events import InstanceId
from reconcile.recovery import VerifiedCheckpoint
from sunion.tape import BEGINNING

WHO = InstanceId("main", "r0", 0)
OUT, IN, OTHER = LogId("out", "r0", 0), LogId("in", "r0", 0), LogId("in", "r1", 0)


def write(log: Log, rows: int) -> None:
    log.append(Start(Origin(log.id.replica, 1), 0))
    if rows:
        batch = pa.RecordBatch.from_arrays([pa.array(range(rows), pa.int64())], names=["time"])
        log.append(Data(Origin(log.id.replica, 1), 0, 0, batch, False, ((rows, 0),), rows))


@pytest.mark.parametrize(
    ("rows", "others", "is_used"), [(5, 0, True), (9, 0, True), (4, 5, True), (4, 4, False), (0, 0, False)]
)
def test_a_checkpoint_of_rows_that_no_log_ever_had_is_of_another_query(rows: int, others: int, is_used: bool) -> None:
    """As where Kafka was wiped, and Redis was not: its state would be taken for ours, and our first rows for repeats."""
    logs = MemoryLogStore()
    for log, count in ((IN, rows), (OTHER, others)):
        write(logs.open(log), count)
    saved = VerifiedCheckpoint(500, 500, (("out/0", 7),), (("in/0", 5),), b"state", (str(WHO), 1))
    places = list(restarts(WHO, [([OUT], saved)], {"in/0": [IN, OTHER]}, logs.open))
    assert [place.position for place in places] == ([500] if is_used else []) + [BEGINNING]


@pytest.mark.parametrize(("promised", "written_to"), [(None, 4), (3, 4), (60, 59)])
def test_a_log_has_all_stable_rows_up_to_its_last_one_and_to_its_stable_boundary(promised: int | None, written_to: int) -> None:
    """Where nothing came before that boundary, nothing tentative may come there either."""
    logs = MemoryLogStore()
    write(logs.open(OUT), 5)
    if promised is not None:
        anchor = Anchor(promised, 0, (("out/0", 5),), (("in/0", 0),))
        logs.open(OUT).append(Boundary(Origin("r0", 1), 0, promised, False, 0, 0, anchor=anchor))
    [place] = restarts(WHO, [([OUT], None)], {"in/0": [IN]}, logs.open)
    assert place.written_to == {"out/0": written_to}
