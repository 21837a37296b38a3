"""A query that has no rows for a while, on real processes: its instances are heard less often, and what is broken meanwhile is
found out all the same (R24)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.deployment import read_all, wait_until
from boreal.model import codec
from boreal.model.frames import Boundary, LogId
from tests.stack.breaking import QUERY, Bench, flowing

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.xdist_group("servers")]

IDLE_AT_ONCE = {name: {**stream, "idle": "500ms"} for name, stream in QUERY["streams"].items()}
MOST_FRAMES = 12
"""Of a calm log in two seconds; twenty where a boundary comes at each interval."""
AWAKE_FRAMES = 6
"""Of one that is not calm, on a machine that is busy."""


@pytest.fixture
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with flowing(tmp_path_factory.mktemp("calm"), {**QUERY, "streams": IDLE_AT_ONCE}) as bench:
        yield bench


def test_a_calm_query_says_little_and_a_dead_path_shows_and_rows_that_come_are_answered_within_x(bench: Bench) -> None:
    deployment, since = bench.deployment, bench.mark()
    topic = deployment.layout.topic_of(LogId("per_key", "r0", 0))

    def written() -> int:
        before = len(read_all(deployment.clusters["a"], topic))
        bench.breathe(2)
        return len(read_all(deployment.clusters["a"], topic)) - before

    def read_from() -> list[str]:
        return list(deployment.statuses()["egress.faults.a"]["reads"].values())

    bench.breathe(2)
    with bench.quiet():
        wait_until(lambda: 2 <= written() <= MOST_FRAMES, "the query is calm", deployment.explain)
        [followed] = read_from()
        with deployment.cut(f"node.{followed}"):
            wait_until(lambda: read_from() != [followed], "the egress has left the replica that is cut off", deployment.explain)
    bench.breathe(2)
    bench.check(since)

    with bench.quiet():
        wait_until(lambda: 2 <= written() <= MOST_FRAMES, "the query is calm again", deployment.explain)
        [followed] = read_from()
        deployment.kill(f"node.{followed}")
    bench.breathe(2)
    bench.check(since)


def test_the_source_of_a_calm_stream_says_little_until_rows_wait_for_it(bench: Bench) -> None:
    """R24: of two streams one has rows, and its rows are stable only with the other's boundaries."""
    deployment, since = bench.deployment, bench.mark()
    topic, calm_us = deployment.layout.topic_of(LogId("right", "", 0)), deployment.layout.plan.calm_pause_us

    def pauses() -> list[int]:
        """What the boundaries say that the source writes within two seconds."""
        before = len(read_all(deployment.clusters["a"], topic))
        bench.breathe(2)
        frames = [codec.decode(record.value) for record in read_all(deployment.clusters["a"], topic)[before:]]
        return [frame.pause for frame in frames if isinstance(frame, Boundary)]

    def is_calm() -> bool:
        said = pauses()
        return 2 <= len(said) <= MOST_FRAMES and min(said) >= calm_us

    def is_awake() -> bool:
        # On a machine that is busy it rests between its boundaries, and says so, but for less than a calm one.
        said = pauses()
        return len(said) >= AWAKE_FRAMES and max(said) < calm_us

    with bench.quiet("right"):
        with bench.quiet():
            wait_until(is_calm, "the source is calm", deployment.explain)
        wait_until(is_awake, "it is awake", deployment.explain)
        bench.check(since)
    bench.breathe(2)
    bench.check(since)
