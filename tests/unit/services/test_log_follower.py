"""When the thread of a follower begins and ends, which has one of its own while nobody else reads the log for it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import cast

from boreal.model.frames import LogId
from services.storage.local_logs import LocalLogs
from services.storage.log_reader import LogPath, _LogFollower
from services.storage.shared_reader import LogFetch
from tests.waiting import wait

LOG = LogId("out", "r0", 0)


class Follower(_LogFollower):
    """One whose thread looks whether it is to leave only when it is told to."""

    def __init__(self) -> None:
        self.running: list[threading.Thread] = []
        self.may_look = threading.Semaphore(0)
        shared = SimpleNamespace(leave=lambda member, place: None)
        calm = SimpleNamespace(choose=lambda gather_us: shared)
        path = SimpleNamespace(consumers=None, calm=calm, local=LocalLogs(), ends=None)
        super().__init__(cast(LogPath, path), LOG, "q.log", -1, lambda event: None, lambda: None, lambda: 0)
        self._position, self._has_joined = 0, True

    def work(self) -> None:
        self.running.append(threading.current_thread())
        self.may_look.acquire()
        while not self._leaves():
            self.may_look.acquire()
        self.running.remove(threading.current_thread())

    def read_by_others(self) -> None:
        self._has_joined = True
        assert self.take_shared(LogFetch(0, (), 0, 0))


def test_one_that_is_to_read_alone_before_its_thread_has_ended_goes_on_with_that_one() -> None:
    """A second thread would fetch, and decode, all that comes once more."""
    follower = Follower()
    assert wait(lambda: len(follower.running) == 1)
    [first] = follower.running
    follower.read_by_others()
    follower.read_alone()
    follower.may_look.release(2)
    follower.read_by_others()
    follower.may_look.release()
    assert wait(lambda: not follower.running)
    first.join()
    follower.read_alone()
    assert wait(lambda: len(follower.running) == 1) and follower.running != [first]
    follower.stop()
    follower.may_look.release()
    assert wait(lambda: not follower.running)
