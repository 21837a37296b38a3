"""Whose turn it is, of those who share a thread: a machine without a clock. Times are microseconds.

Members that are calm have their turns at the same moments, since their sources write at one time; together these may take as
long as a member with rows may wait in all. So what is patient lets the others go first. When patient members are late, both
kinds have every other turn, so that nobody waits for ever.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import Generic, TypeVar

Member = TypeVar("Member")

NEVER = 1 << 62
LATE_US = 100_000
"""A patient turn that has been due for longer is late."""


class TurnQueue(Generic[Member]):
    """When the next turn of each member is due."""

    def __init__(self) -> None:
        self._due: dict[Member, tuple[int, bool]] = {}
        """And whether the member is patient."""
        self._lanes: tuple[list[tuple[int, int, Member]], ...] = ([], [])
        """The same as two heaps, of those in a hurry and of the patient ones, with entries that no longer hold. The number in
        between is never the same."""
        self._numbers = count()
        self._was_hurried = False

    def __contains__(self, member: Member) -> bool:
        return member in self._due

    def due(self, member: Member) -> int:
        """When the next turn of a member is due."""
        return self._due[member][0]

    def set_due(self, member: Member, due: int, is_patient: bool) -> None:
        """Add a member, or change when its next turn is due."""
        if self._due.get(member) != (due, is_patient):
            self._due[member] = due, is_patient
            heapq.heappush(self._lanes[is_patient], (due, next(self._numbers), member))

    def remove(self, member: Member) -> None:
        """Forget a member; nothing happens if it is none."""
        self._due.pop(member, None)

    def first_due(self) -> int:
        """When the first turn of all is due."""
        return min(self._first(is_patient) for is_patient in (False, True))

    def is_late(self, now: int) -> bool:
        """Whether a turn should have been long ago."""
        return self.first_due() < now - LATE_US

    def take(self, now: int) -> Member | None:
        """The member whose turn it is now; None if there is none. Its next turn is due when `set_due` says so."""
        hurried, patient = self._first(False), self._first(True)
        if min(hurried, patient) > now:
            return None
        is_for_patient = hurried > now or (patient < now - LATE_US and self._was_hurried)
        self._was_hurried = not is_for_patient
        member = self._lanes[is_for_patient][0][-1]
        self._due[member] = NEVER, is_for_patient
        return member

    def _first(self, is_patient: bool) -> int:
        """When the first turn in a lane is due. Then the first entry of its heap is valid."""
        lane = self._lanes[is_patient]
        while lane:
            due, _, member = lane[0]
            if self._due.get(member) == (due, is_patient):
                return due
            heapq.heappop(lane)
        return NEVER
