"""Roles of one process work one after the other, unless one needs long."""

from __future__ import annotations

import threading
import time

import pytest

from services.hosting import turns as turns_module
from services.hosting.turns import Turns


class Role(threading.Thread):
    """Takes a turn, and ends it when it is told to."""

    def __init__(self, turns: Turns) -> None:
        super().__init__(daemon=True)
        self._turns = turns
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self.start()

    def run(self) -> None:
        with self._turns.take():
            self.has_begun.set()
            self.may_end.wait(10)


def test_a_turn_begins_when_the_one_before_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "PATIENCE_S", 10)
    turns = Turns()
    first = Role(turns)
    assert first.has_begun.wait(5)
    second = Role(turns)
    assert not second.has_begun.wait(0.05)
    first.may_end.set()
    assert second.has_begun.wait(5)
    second.may_end.set()


def test_who_has_a_long_turn_keeps_nobody_waiting_for_longer_than_that() -> None:
    """A role that waits for Kafka must not slow down the others, however many turns they take."""
    turns = Turns()
    stuck = Role(turns)
    assert stuck.has_begun.wait(5)
    time.sleep(turns_module.PATIENCE_S)  # not a wait for anything: this is what must have passed
    began = time.monotonic()
    for _ in range(1_000):
        with turns.take():
            pass
    assert time.monotonic() - began < 1_000 * turns_module.PATIENCE_S / 4
    stuck.may_end.set()
    stuck.join(5)
    assert not turns._lock.locked()


def test_a_turn_that_fails_ends() -> None:
    turns = Turns()
    with pytest.raises(ZeroDivisionError), turns.take():
        _ = 1 / 0
    assert not turns._lock.locked()
