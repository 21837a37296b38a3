"""From which replica rows are read again, and what a link remembers of the recent past."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from boreal.model.frames import LogId
from reconcile.links import HOP_SAMPLES, Link, RecentLargest
from reconcile.upstream import Candidate, Upstream
from sunion.port import Port


def test_a_replica_that_had_nothing_to_read_again_is_followed_by_the_next_within_reach() -> None:
    logs = [LogId("all", f"r{number}", 0) for number in range(3)]
    upstream = Upstream([Candidate(log, seen) for log, seen in zip(logs, (1000, 100, 1000), strict=True)], 150)
    link = Link(Port("all/0", "all", 10, 0), upstream, (), ("all",))
    asked = []
    for _ in range(3):
        asked.append(link.log_to_read(1100))
        link.read_turn += 1
    assert asked == [logs[0], logs[2], logs[0]]


@given(st.lists(st.integers(0, 20)), st.integers(0, 2 * HOP_SAMPLES))
def test_the_largest_of_the_last_values_is_known_after_each(values: list[int], calm: int) -> None:
    recent, noted = RecentLargest(), list[int]()
    for value in [*values, *[1] * calm, *values]:
        recent.note(value)
        noted.append(value)
        assert recent.value == max(noted[-HOP_SAMPLES:])
