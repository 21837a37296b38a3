"""Evidence of what could be read: where partitions ended was asked, and all records before that end have been taken since.

Kafka is asked through the topic; what an answer means is the intake's matter (intake.stream_progress).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from intake.stream_progress import Question

STALE_US = 10_000_000
"""A question that is older is asked again: the records before that end may have been taken back, and would never come."""


class TopicEnds(Protocol):
    """What is asked of the user's topic."""

    def ends(self, numbers: Iterable[int]) -> Mapping[int, int]:
        """Where these partitions end now; without those whose broker does not say so at once."""
        ...

    def has_read(self, number: int, end: int) -> bool: ...


class Evidence:
    """The questions that are open, one for each partition."""

    def __init__(self, topic: TopicEnds, clock: Callable[[], int], answer: Callable[[int, Question, int], None]) -> None:
        """answer: is told the partition, its question and the time, once all before the question was taken."""
        self._topic = topic
        self._clock = clock
        self._answer = answer
        self._open: dict[int, tuple[Question, int]] = {}

    def ask(self, numbers: Iterable[int], question: Question) -> None:
        """Ask where partitions end now, but for those of which an answer is still to come."""
        stale = question.asked_at - STALE_US
        wanted = [number for number in numbers if number not in self._open or self._open[number][0].asked_at < stale]
        for number, end in self._topic.ends(wanted).items():
            self._open[number] = question, end
        self.look()

    def look(self) -> None:
        """Answer what can be answered by now."""
        for number, (question, end) in list(self._open.items()):
            if self._topic.has_read(number, end):
                del self._open[number]
                self._answer(number, question, self._clock())

    def forget(self) -> None:
        """Offsets mean something else from here on."""
        self._open.clear()
