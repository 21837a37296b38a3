"""Evidence that partitions were read: the end of a partition was asked, and all records before that end have since been taken.

The topic asks Kafka. The intake decides what an answer means (intake.stream_progress).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from intake.stream_progress import Question

STALE_US = 10_000_000
"""An older question is asked again: the records before that end may have been deleted, and would never arrive."""


class TopicEnds(Protocol):
    """What `Evidence` needs from the user's topic."""

    def ends(self, numbers: Collection[int], since: int) -> Mapping[int, int]:
        """End offset by partition, as of this time or later (us); without partitions whose broker does not answer at once."""
        ...

    def has_read(self, number: int, end: int) -> bool:
        """Whether all records of partition `number` before offset `end` have been taken."""
        ...


class Evidence:
    """The open questions, at most one per partition."""

    def __init__(self, topic: TopicEnds, clock: Callable[[], int], answer: Callable[[int, Question, int], None]) -> None:
        """clock: the time in us. answer: called with the partition, its question and the time, once everything that was written
        before the question has been taken."""
        self._topic = topic
        self._clock = clock
        self._answer = answer
        self._open: dict[int, tuple[Question, int]] = {}

    def ask(self, numbers: Iterable[int], question: Question) -> bool:
        """Ask for the ends of partitions as of the question, except those that still wait for an answer; then `look`."""
        stale = question.asked_at - STALE_US
        wanted = [number for number in numbers if number not in self._open or self._open[number][0].asked_at < stale]
        for number, end in self._topic.ends(wanted, question.asked_at).items():
            self._open[number] = question, end
        return self.look()

    def look(self) -> bool:
        """Answer the questions that can be answered now; returns whether there were any."""
        answered = [number for number, (_, end) in self._open.items() if self._topic.has_read(number, end)]
        for number in answered:
            question, _ = self._open.pop(number)
            self._answer(number, question, self._clock())
        return bool(answered)

    @property
    def is_open(self) -> bool:
        """Whether a question waits for records."""
        return bool(self._open)

    def forget(self) -> None:
        """Drop all questions: offsets have a new meaning from now on."""
        self._open.clear()
