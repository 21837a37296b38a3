"""The trimmer: what the monitor says, and what needs no word of it."""

from __future__ import annotations

from contextlib import closing

import pyarrow as pa
import pytest

from boreal.model.errors import CorruptError
from boreal.model.frames import Anchor, Boundary, Data, LogId, Origin
from formats.control_messages import trim_item
from logs import index
from logs.memory_log import MemoryLog
from services.hosting.trimmer import Trimmer
from tests.waiting import wait

ORIGIN = Origin("", 1)


def log_of(stream: str, rows: int, boundaries: int) -> MemoryLog:
    """One frame of rows, then nothing but boundaries."""
    log = MemoryLog(LogId(stream, "", 0))
    if rows:
        batch = pa.RecordBatch.from_arrays([pa.array(range(rows), pa.int64())], names=["time"])
        log.append(Data(ORIGIN, 0, 0, batch, False, ((rows, 0),), rows))
    for time_us in range(boundaries):
        anchor = Anchor(time_us, time_us, (), ()) if time_us % 100 == 0 else None
        log.append(Boundary(ORIGIN, 0, time_us, False, 0, 0, anchor=anchor))
    return log


def test_what_the_monitor_says_is_trimmed_at_once() -> None:
    one, other = log_of("one", 5, 3), log_of("other", 5, 3)
    with closing(Trimmer([one, other])) as trimmer:
        trimmer.take(trim_item({"one/0": 5, "elsewhere/0": 9}))
        assert wait(lambda: one.start == 1)
        assert other.start == 0


def test_a_log_that_cannot_be_trimmed_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_damage(stable_id: int) -> None:
        raise CorruptError("offset 7: the frame's checksum is wrong")

    broken, sound = log_of("broken", 5, 3), log_of("sound", 5, 3)
    monkeypatch.setattr(broken, "trim", find_damage)
    with closing(Trimmer([broken, sound])) as trimmer:
        trimmer.take(trim_item({"broken/0": 5, "sound/0": 5}))
        assert wait(lambda: sound.start == 1)


def test_idle_logs_stay_small_though_nobody_speaks_but_rows_wait_for_the_monitors_word() -> None:
    frames = index.IDLE_FRAMES + 1_000
    empty, full = log_of("empty", 0, frames), log_of("full", 5, frames)
    with closing(Trimmer([full, empty], try_all_s=0.05)) as trimmer:
        assert wait(lambda: empty.start > 0)
        assert empty.end - empty.start == index.IDLE_FRAMES
        assert full.start == 0
        trimmer.take(trim_item({"full/0": 5}))
        assert wait(lambda: full.start > 0)
        assert full.end - full.start == index.IDLE_FRAMES
        for log in (empty, full):
            for time_us in range(frames, frames + 500):
                log.append(Boundary(ORIGIN, 0, time_us, False, 0, 0, anchor=Anchor(time_us, time_us, (), ())))
        assert wait(lambda: full.end - full.start == empty.end - empty.start == index.IDLE_FRAMES)
