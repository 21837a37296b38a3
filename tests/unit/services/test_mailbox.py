"""The mailbox: only the newest of each key, and of many only the last few."""

from __future__ import annotations

import queue
import threading

from services.kafka.mailbox import Mailbox


def test_the_newest_of_each_key_is_taken_once() -> None:
    box: Mailbox[str, int] = Mailbox()
    box.put({"a": 1, "b": 2})
    box.put({"a": 3})
    assert box.take() == {"a": 3, "b": 2}
    assert box.take(timeout_s=0) == {}


def test_where_more_would_wait_the_oldest_are_forgotten() -> None:
    box: Mailbox[int, str] = Mailbox(at_most=2)
    for number in range(5):
        box.put({number: f"record {number}"})
    assert box.take() == {3: "record 3", 4: "record 4"}


def test_who_waits_is_woken_by_the_next_and_by_the_end() -> None:
    box: Mailbox[str, int] = Mailbox()
    taken: queue.Queue[dict[str, int] | None] = queue.Queue()

    def take_twice() -> None:
        for _ in range(2):
            taken.put(box.take())

    threading.Thread(target=take_twice, daemon=True).start()
    box.put({"a": 1})
    assert taken.get(timeout=10) == {"a": 1}
    box.close()
    assert taken.get(timeout=10) is None
