"""Roles begin in the order in which they ask, a few at a time, and none holds up the others for long."""

from __future__ import annotations

import threading

import pytest

from services.hosting import starts as starts_module
from services.hosting.starts import AT_ONCE, Starts
from tests.waiting import wait


class Beginners:
    """Roles that begin, each until it is told to go on."""

    def __init__(self, starts: Starts) -> None:
        self._starts = starts
        self.begun: list[int] = []
        self._ended: dict[int, threading.Event] = {}
        self._threads: list[threading.Thread] = []

    def add(self, number: int) -> None:
        """One more asks for its turn; returns when it has it, or waits."""
        before = len(self._starts._waiting) + len(self.begun)
        self._ended[number] = threading.Event()
        self._threads.append(threading.Thread(target=self._begin, args=(number,)))
        self._threads[-1].start()
        assert wait(lambda: len(self._starts._waiting) + len(self.begun) > before)

    def end(self, number: int) -> None:
        self._ended[number].set()

    def end_all(self) -> None:
        for ended in self._ended.values():
            ended.set()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def _begin(self, number: int) -> None:
        with self._starts.take():
            self.begun.append(number)
            self._ended[number].wait(30)


def test_a_few_begin_at_a_time_and_the_next_one_when_one_has_begun() -> None:
    roles = Beginners(Starts())
    for number in range(AT_ONCE + 2):
        roles.add(number)
    assert sorted(roles.begun) == list(range(AT_ONCE))
    roles.end(1)
    assert wait(lambda: len(roles.begun) == AT_ONCE + 1)
    assert roles.begun[-1] == AT_ONCE, "the one that has waited longest"
    roles.end_all()
    assert roles.begun[-1] == AT_ONCE + 1


def test_those_that_have_not_begun_in_time_hold_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = Starts()
    roles = Beginners(starts)
    for number in range(AT_ONCE + 1):
        roles.add(number)
    assert AT_ONCE not in roles.begun
    monkeypatch.setattr(starts_module, "PATIENCE_S", 0.0)
    with starts._changed:
        starts._changed.notify_all()
    assert wait(lambda: AT_ONCE in roles.begun)
    roles.end_all()


def test_one_that_fails_gives_its_turn_back() -> None:
    starts = Starts()
    for _ in range(2 * AT_ONCE):
        with pytest.raises(ValueError), starts.take():
            raise ValueError
    assert not starts._since and not starts._waiting
