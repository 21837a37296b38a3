"""An attribute that is worked out once, without a lock for all objects of its class."""

from __future__ import annotations

import threading

from boreal.model.lazy import lazy


class Slow:
    def __init__(self, goes_on: threading.Event) -> None:
        self.goes_on = goes_on
        self.asked = threading.Event()
        self.times = 0

    @lazy
    def answer(self) -> int:
        """What takes long."""
        self.times += 1
        self.asked.set()
        assert self.goes_on.wait(10)
        return 42


def test_it_is_worked_out_once_and_tells_what_it_is() -> None:
    ready = threading.Event()
    ready.set()
    one = Slow(ready)
    assert (one.answer, one.answer, one.times) == (42, 42, 1)
    assert isinstance(Slow.answer, lazy) and Slow.answer.__doc__ == "What takes long."


def test_an_object_does_not_wait_for_another_of_its_class() -> None:
    never, ready = threading.Event(), threading.Event()
    ready.set()
    slow, quick = Slow(never), Slow(ready)
    waiting = threading.Thread(target=lambda: slow.answer)
    waiting.start()
    assert slow.asked.wait(10)
    assert quick.answer == 42
    never.set()
    waiting.join(10)
