"""CorrectedStream on real Kafkas: one site and two, places and groups, silence and deaths."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from itertools import count, islice
from pathlib import Path

import pandas
import pytest
from kafka import TopicPartition
from kafka.errors import KafkaError
from pydantic import BaseModel

from boreal.client import Boundary, CorrectedStream, MissingRows, RecDone, Stable, Tentative, Undo
from boreal.model.errors import UserError
from boreal.model.frames import Origin
from boreal.model.frames import RecDone as RecDoneFrame
from boreal.model.frames import Undo as UndoFrame
from services.kafka.topics import TopicSpec, delete, ensure
from services.stack.servers import KafkaServer
from tests.foreign import make_foreign_packages, run_python
from tests.stack.lives import Life, boundary, cluster_of, data
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("servers")

ORIGIN = Origin("r0", 1)


class Row(BaseModel):
    time: datetime
    name: str
    n: int


@pytest.fixture
def life(kafka: KafkaServer, fresh_name: str) -> Iterator[Life]:
    """A one-site egress."""
    cluster = cluster_of(kafka)
    ensure(cluster, [TopicSpec(f"{fresh_name}.out", 1), TopicSpec(f"{fresh_name}.stable", 1)])
    life = Life(cluster, fresh_name)
    yield life
    life.close()


def guess_and_heal(life: Life) -> None:
    """Rows 0 and 1 stable; 2 and 3 tentative, undone, and then stable."""
    life.give(data(0, 2), boundary(100, 2), data(2, 2, tentative=True, at=200), UndoFrame(ORIGIN, 1, 1, "jfk#1"))
    life.give(data(2, 2, epoch=1, at=200), RecDoneFrame(ORIGIN, 1, "jfk#1"))
    life.settle()


def numbers(rows: Iterator[dict], count: int) -> list[int]:
    return [row["n"] for row in islice(rows, count)]


def test_stable_rows_are_of_the_model(life: Life, kafka: KafkaServer) -> None:
    guess_and_heal(life)
    with CorrectedStream(life.name, kafka.bootstrap, model=Row) as stream:
        rows = list(islice(stream.stable(), 4))
    assert rows[0] == Row(time=datetime(1970, 1, 1, tzinfo=UTC), name="k0é", n=0)
    assert [row.n for row in rows] == [0, 1, 200, 201]


def test_changes_tell_what_was_taken_back(life: Life, kafka: KafkaServer) -> None:
    guess_and_heal(life)
    with CorrectedStream(life.name, kafka.bootstrap) as stream:
        changes = list(islice(stream.changes(), 9))
    assert [type(change) for change in changes] == (
        [Stable] * 2 + [Boundary] + [Tentative] * 2 + [Undo] + [Stable] * 2 + [RecDone]
    )
    undo = changes[5]
    assert isinstance(undo, Undo) and undo.revoked == tuple(changes[3:5]) and undo.cause == "jfk#1"
    assert isinstance(changes[3], Tentative) and changes[3].missing_inputs == ("jfk",)


def test_latest_is_one_row_a_key(life: Life, kafka: KafkaServer) -> None:
    guess_and_heal(life)
    with CorrectedStream(life.name, kafka.bootstrap, model=Row) as stream:
        seen = [({key: row.data.n for key, row in view.items()}, view.is_tentative) for view in islice(stream.latest(), 7)]
    assert seen[3:] == [
        ({"k0é": 201, "k1é": 1, "k2é": 200}, True),
        ({"k0é": 0, "k1é": 1}, False),
        ({"k0é": 0, "k1é": 1, "k2é": 200}, False),
        ({"k0é": 201, "k1é": 1, "k2é": 200}, False),
    ]


def test_async_iteration(life: Life, kafka: KafkaServer) -> None:
    guess_and_heal(life)

    async def read() -> list[int]:
        found: list[int] = []
        with CorrectedStream(life.name, kafka.bootstrap) as stream:
            async for row in stream.astable():
                found.append(row["n"])
                if len(found) == 4:
                    break
        return found

    assert asyncio.run(read()) == [0, 1, 200, 201]


def test_a_place_is_where_another_stream_goes_on(life: Life, kafka: KafkaServer) -> None:
    guess_and_heal(life)
    with CorrectedStream(life.name, kafka.bootstrap) as stream:
        assert numbers(stream.stable(), 3) == [0, 1, 200]
        place = json.loads(json.dumps(stream.place()))
    with CorrectedStream(life.name, kafka.bootstrap, place=place) as stream:
        assert numbers(stream.stable(), 1) == [201]
    with CorrectedStream(life.name, kafka.bootstrap, place={**place, "topics": {}}) as stream:
        assert [type(change) for change in islice(stream.changes(), 1)] == [Stable]
    with pytest.raises(UserError, match="is not a place"):
        CorrectedStream(life.name, kafka.bootstrap, place={"v": 9})


def test_a_group_keeps_the_place(life: Life, kafka: KafkaServer) -> None:
    guess_and_heal(life)
    group = f"{life.name}-readers"
    with CorrectedStream(life.name, kafka.bootstrap, group=group) as stream:
        assert numbers(stream.stable(), 2) == [0, 1]
        stream.commit(group)
    with CorrectedStream(life.name, kafka.bootstrap, group=group) as stream:
        assert numbers(stream.stable(), 2) == [200, 201]


def test_a_read_until_now_ends_at_what_is_there(life: Life, kafka: KafkaServer) -> None:
    guess_and_heal(life)
    with CorrectedStream(life.name, kafka.bootstrap, model=Row) as stream:
        assert [row.n for row in stream.stable(until="now")] == [0, 1, 200, 201]
        assert list(stream.stable(until="now")) == []
        life.give(data(4, 1, epoch=1))
        life.settle()
        assert [row.n for row in stream.stable(until="now")] == [4]
    with CorrectedStream(life.name, kafka.bootstrap) as stream:
        assert len(list(stream.changes(until="now"))) == 10
        assert list(stream.latest(until="now")) == []


def test_frames_hold_what_is_there_now(life: Life, kafka: KafkaServer) -> None:
    guess_and_heal(life)
    life.give(data(4, 1, tentative=True, epoch=1, at=300))
    life.settle()

    def frame(view: str) -> pandas.DataFrame:
        with CorrectedStream(life.name, kafka.bootstrap, model=Row) as stream:
            return stream.frame(view, types={"n": "double"}).to_pandas()

    stable, latest, changes = frame("stable"), frame("latest"), frame("changes")
    assert stable.n.tolist() == [0.0, 1.0, 200.0, 201.0] and str(stable.time.dtype) == "datetime64[us, UTC]"
    assert dict(zip(latest.name, zip(latest.n, latest._tentative, strict=True), strict=True)) == {
        "k0é": (300.0, True), "k1é": (1.0, False), "k2é": (200.0, False)
    }  # fmt: skip
    row = ["stable"] * 2
    assert changes._type.tolist() == [*row, "boundary", "tentative", "tentative", "undo", *row, "rec_done", "tentative"]
    assert changes._revoked[5] == 2 and changes._missing_inputs[3].tolist() == ["jfk"] and changes._id[7] == 3


def test_a_second_frame_goes_on_after_the_first(life: Life, kafka: KafkaServer) -> None:
    """Of the latest rows it is the whole view; a tentative row that was undone meanwhile is not in it."""
    life.give(data(0, 2), data(2, 1, tentative=True))
    life.settle()
    with CorrectedStream(life.name, kafka.bootstrap) as stream, CorrectedStream(life.name, kafka.bootstrap) as stable:
        assert stream.frame("latest").to_arrow().column("n").to_pylist() == [0, 1, 2]
        assert len(stable.frame()) == 2
        life.give(UndoFrame(ORIGIN, 1, 1, "jfk#1"), data(2, 1, epoch=1, at=5))
        life.settle()
        assert sorted(stream.frame("latest").to_arrow().column("n").to_pylist()) == [0, 1, 5]
        assert stable.frame().to_arrow().column("n").to_pylist() == [5]


def test_a_query_that_does_not_exist_is_an_error_at_once(
    life: Life, kafka: KafkaServer, caplog: pytest.LogCaptureFixture
) -> None:
    guess_and_heal(life)
    name = f"{life.name}x"
    for read in (CorrectedStream.frame, lambda stream: next(stream.stable()), lambda stream: next(stream.changes())):
        with CorrectedStream(name, kafka.bootstrap) as stream:
            started = time.monotonic()
            with pytest.raises(UserError, match=f"query: has no results here: there is no topic {name}") as error:
                read(stream)
            assert time.monotonic() - started < 5
    assert error.value.field == "query" and life.name in error.value.fix
    assert not [record for record in caplog.records if record.name == "boreal.client"], "an error that is raised is not logged"


def test_a_frame_of_an_unreachable_kafka_is_an_error() -> None:
    with CorrectedStream("q", "127.0.0.1:1", bootstrap_timeout_ms=50) as stream, pytest.raises(KafkaError):
        stream.frame()


def test_rows_that_are_kept_no_longer_are_missed_loudly(life: Life, kafka: KafkaServer) -> None:
    life.give(data(0, 6))
    life.settle()
    with closing(life.cluster.make_admin()) as admin:
        admin.delete_records({TopicPartition(f"{life.name}.stable", 0): 4})
    with CorrectedStream(life.name, kafka.bootstrap, place={"v": 1, "id": 2, "topics": {}}) as stream:
        with pytest.raises(MissingRows, match="rows 2 to 3"):
            next(iter(stream.stable()))
        assert numbers(stream.stable(), 2) == [4, 5]


def test_closing_ends_the_iteration(life: Life, kafka: KafkaServer) -> None:
    stream: CorrectedStream[dict] = CorrectedStream(life.name, kafka.bootstrap)
    timer = threading.Timer(0.5, stream.close)
    timer.start()
    assert list(stream.changes()) == []
    timer.join()


def test_a_stream_outlives_lives_of_the_egress(life: Life, kafka: KafkaServer) -> None:
    """A second life with a zombie's records between its own."""
    life.give(data(0, 2), data(2, 1, tentative=True))
    life.settle()
    second = Life(life.cluster, life.name)
    second.give_rows(1)
    second.settle()
    life.give(data(3, 1, tentative=True))
    life.out.close()
    second.give_rows(2)
    with CorrectedStream(life.name, kafka.bootstrap) as stream:
        changes = list(islice(stream.changes(), 7))
    second.close()
    assert [type(change) for change in changes] == [Stable, Stable, Tentative, Undo, Stable, Stable, Stable]
    assert [change.id for change in changes if isinstance(change, Stable)] == [0, 1, 2, 3, 4]


IN_AN_APPLICATION = """
import sys
from itertools import islice
from boreal import CorrectedStream
name, bootstrap = sys.argv[1:]
with CorrectedStream(name, bootstrap) as stream:
    print([row["n"] for row in islice(stream.stable(), 4)])
with CorrectedStream(name, bootstrap) as stream:
    print([type(change).__name__ for change in islice(stream.changes(), 5)])
"""


def test_an_application_with_packages_that_are_called_as_ours_are_reads_a_stream(
    life: Life, kafka: KafkaServer, tmp_path: Path
) -> None:
    guess_and_heal(life)
    run = run_python(make_foreign_packages(tmp_path), "-c", IN_AN_APPLICATION, life.name, kafka.bootstrap)
    said = "[0, 1, 200, 201]\n['Stable', 'Stable', 'Boundary', 'Tentative', 'Tentative']\n"
    assert (run.stdout, run.stderr, run.returncode) == (said, "", 0)


# Two sites.


@pytest.fixture
def sites(kafka: KafkaServer, own_kafka: KafkaServer, fresh_name: str) -> dict[str, KafkaServer]:
    """The shared broker is site b's; site a's may be killed."""
    found = {"a": own_kafka, "b": kafka}
    for site, server in found.items():
        ensure(cluster_of(server), [TopicSpec(f"{fresh_name}.out.{site}", 1)])
    return found


@pytest.fixture
def both(sites: dict[str, KafkaServer], fresh_name: str) -> Iterator[dict[str, Life]]:
    lives = {site: Life(cluster_of(server), fresh_name, site) for site, server in sites.items()}
    yield lives
    for life in lives.values():
        life.close()


def speaking(life: Life, through: Callable[[], int]) -> Callable[[], None]:
    """Lets a site give ever later boundaries, until the returned function is called."""
    stopping = threading.Event()

    def speak() -> None:
        while not stopping.wait(0.1):
            time_us = through()
            life.give(boundary(time_us, life.next_id, life.epoch))

    thread = threading.Thread(target=speak)
    thread.start()

    def stop() -> None:
        stopping.set()
        thread.join()

    return stop


def test_two_sites_are_one_stream(sites: dict[str, KafkaServer], both: dict[str, Life]) -> None:
    bootstrap = {site: server.bootstrap for site, server in sites.items()}
    both["a"].give(data(0, 3))
    both["b"].give(data(0, 5))
    with CorrectedStream(both["a"].name, bootstrap, model=Row) as stream:
        rows = stream.stable()
        assert [row.n for row in islice(rows, 5)] == [0, 1, 2, 3, 4]
        both["a"].give(data(3, 3))
        assert [row.n for row in islice(rows, 1)] == [5]
        place = stream.place()
    assert place["id"] == 6
    with CorrectedStream(both["a"].name, bootstrap, place=place) as stream:
        both["b"].give(data(5, 2))
        assert numbers(stream.stable(), 1) == [6]


def test_a_dead_site_is_left_for_the_other(sites: dict[str, KafkaServer], both: dict[str, Life]) -> None:
    """What the dead site had given tentatively is undone, and no stable row is lost or repeated."""
    bootstrap = {site: server.bootstrap for site, server in sites.items()}
    a, b = both["a"], both["b"]
    with CorrectedStream(a.name, bootstrap, silence_s=2.0) as stream:
        changes = stream.changes()
        a.give(data(0, 2))
        first = list(islice(changes, 2))
        assert {change.site for change in first if isinstance(change, Stable)} == {"a"}
        b.give(data(0, 3))
        a.give(data(2, 2, tentative=True))
        assert [change.data["n"] for change in islice(changes, 2) if isinstance(change, Tentative)] == [2, 3]
        a.settle()
        sites["a"].kill()
        clock = count(1_000, 100)
        stop = speaking(b, lambda: next(clock))
        undo, row = (change for change in islice(changes, 2) if not isinstance(change, Boundary))
        stop()
        assert isinstance(undo, Undo) and [row.data["n"] for row in undo.revoked] == [2, 3]
        assert isinstance(row, Stable) and (row.id, row.data["n"], row.site) == (2, 2, "b")


@pytest.mark.soak
def test_an_unreachable_site_is_silence(sites: dict[str, KafkaServer], both: dict[str, Life]) -> None:
    bootstrap = {site: server.bootstrap for site, server in sites.items()}
    sites["a"].kill()
    both["b"].give(data(0, 4))
    with CorrectedStream(both["b"].name, bootstrap) as stream:
        assert numbers(stream.stable(), 3) == [0, 1, 2]
        assert [row["n"] for row in stream.stable(until="now")] == [3]
        sites["a"].start()
        both["a"].give(data(0, 6))
        assert numbers(stream.stable(), 2) == [4, 5]


def make_anew(life: Life) -> None:
    """The topics of its query."""
    specs = [TopicSpec(f"{life.name}.out", 1), TopicSpec(f"{life.name}.stable", 1)]
    delete(life.cluster, [spec.name for spec in specs])
    with closing(life.cluster.make_admin()) as admin:
        wait_until(lambda: not {spec.name for spec in specs} & set(admin.list_topics()), "they are gone")
    ensure(life.cluster, specs)


def test_a_topic_that_is_made_anew_is_read_on_though_its_writers_lives_begin_at_1_again(
    life: Life, kafka: KafkaServer
) -> None:
    life.give(data(0, 2))
    life.settle()
    life.close()
    second = Life(life.cluster, life.name)  # an egress that was started twice
    second.give(data(2, 2, epoch=1))
    second.settle()
    second.close()
    with CorrectedStream(life.name, kafka.bootstrap) as stream:
        changes = (change for change in stream.changes() if isinstance(change, Stable))
        assert [change.data["n"] for change in islice(changes, 4)] == [0, 1, 2, 3]
        make_anew(life)
        anew = Life(life.cluster, life.name)
        feeds = stream._feeds
        assert feeds is not None
        wait_until(lambda: all(feed._recreations for feed in feeds._feeds), "the reader sees that it is shorter now")
        anew.give(data(0, 6))
        anew.settle()
        assert [change.data["n"] for change in islice(changes, 2)] == [4, 5]
        anew.close()


def test_a_place_in_a_topic_that_was_made_anew_lacks_no_row_that_the_new_one_has(life: Life, kafka: KafkaServer) -> None:
    """There the same rows stand at other offsets: they were given in fewer transactions."""
    for n in range(3):
        life.give(data(n, 1))
        life.settle()
    life.close()
    with CorrectedStream(life.name, kafka.bootstrap) as stream:
        assert numbers(stream.stable(), 3) == [0, 1, 2]
        place = json.loads(json.dumps(stream.place()))
    make_anew(life)
    anew = Life(life.cluster, life.name)
    anew.give(data(0, 8))
    anew.settle()
    anew.close()
    with CorrectedStream(life.name, kafka.bootstrap, place=place) as stream:
        assert numbers(stream.stable(), 5) == [3, 4, 5, 6, 7]
        [before], [now] = place["topics"].values(), stream.place()["topics"].values()
        assert before["topic_id"] and now["topic_id"] not in ("", before["topic_id"])
