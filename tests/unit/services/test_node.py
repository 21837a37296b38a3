"""What a node counts as confirmed, since acknowledgements and checkpoints rest on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from boreal.frames import Boundary, Frame, LogId, Origin
from services.log.kafka import KafkaLog
from services.node.node import Appender


@dataclass
class Log:
    """A log in a partition that may be slower than another."""

    id: LogId
    unacknowledged: int = 0

    def append_later(self, frame: Frame) -> None:
        self.unacknowledged += 1


def test_nothing_counts_as_confirmed_after_a_frame_that_is_not() -> None:
    slow, quick = Log(LogId("out", "r0", 0)), Log(LogId("out", "r0", 1))
    appender = Appender([cast(KafkaLog, log) for log in (slow, quick)])
    assert appender.confirmed == 0
    for log in (quick, slow, quick, quick):
        appender.append(log.id, Boundary(Origin("r0", 1), 0, 7, False, 0, 0))
    assert appender.confirmed == 0
    quick.unacknowledged = 0
    assert appender.confirmed == 1
    appender.append(quick.id, Boundary(Origin("r0", 1), 0, 8, False, 0, 0))
    slow.unacknowledged = 0
    assert appender.confirmed == 4
    quick.unacknowledged = 0
    assert appender.confirmed == appender.appended == 5
