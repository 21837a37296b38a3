"""Plain Spark reads results by `format("boreal")`: in batches and as a stream, each row once whatever is run again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from boreal.client import CorrectedStream
from boreal.model.frames import Origin, RecDone, Undo
from boreal.spark import register
from services.kafka.topics import TopicSpec, delete, ensure
from services.stack.servers import KafkaServer
from tests.stack.lives import Life, boundary, cluster_of, data
from tests.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.xdist_group("servers")]

ORIGIN = Origin("r0", 1)


@pytest.fixture
def life(kafka: KafkaServer, fresh_name: str) -> Iterator[Life]:
    cluster = cluster_of(kafka)
    compacted = TopicSpec(f"{fresh_name}.latest", 1, {"cleanup.policy": "compact"})
    ensure(cluster, [TopicSpec(f"{fresh_name}.out", 1), TopicSpec(f"{fresh_name}.stable", 1), compacted])
    life = Life(cluster, fresh_name, has_latest=True)
    yield life
    life.close()


@pytest.fixture
def spark(session: SparkSession) -> SparkSession:
    register(session)
    return session


def guess(life: Life) -> None:
    """Rows 0 and 1 stable, 2 and 3 tentative."""
    life.give(data(0, 2), boundary(100, 2), data(2, 2, tentative=True, at=200))
    life.settle()


def heal(life: Life) -> None:
    """The tentative rows are undone; row 2 is stable, and a row of no other key was never there."""
    life.give(Undo(ORIGIN, 1, 1, "jfk#1"), data(2, 1, epoch=1, at=201), RecDone(ORIGIN, 1, "jfk#1"))
    life.settle()


def of(life: Life, kafka: KafkaServer, view: str, reader: Any, **options: object) -> DataFrame:
    given = {"query": life.name, "bootstrap": kafka.bootstrap, "view": view, **options}
    frame: DataFrame = reader.format("boreal").options(**given).load()
    return frame


class Taken:
    """The rows of each micro-batch, by its number. fail_at: the first run of this batch fails after it has taken its rows."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.batches: dict[int, list[tuple[Any, ...]]] = {}
        self._fail_at = fail_at

    def take(self, frame: DataFrame, number: int) -> None:
        self.batches[number] = [tuple(row) for row in frame.collect()]
        if number == self._fail_at:
            self._fail_at = None
            raise RuntimeError("the sink is away")

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return [row for _, rows in sorted(self.batches.items()) for row in rows]


def run(frame: DataFrame, taken: Taken, checkpoint: Path) -> None:
    """All that is there now."""
    query = frame.writeStream.foreachBatch(taken.take).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query.start().awaitTermination()


def test_a_batch_is_what_a_client_reads(spark: SparkSession, life: Life, kafka: KafkaServer) -> None:
    """Of a topic with a zombie's record between those of its successor, which does not count."""
    guess(life)
    second = Life(life.cluster, life.name)
    second.give_rows(2)
    second.settle()
    life.give(data(4, 1, tentative=True, at=400))
    life.out.close()
    second.give(data(4, 1, tentative=True, epoch=second.epoch, at=500))
    second.close()

    stable, changes, latest = (of(life, kafka, view, spark.read) for view in ("stable", "changes", "latest"))
    assert stable.dtypes == [("time", "timestamp"), ("name", "string"), ("n", "bigint")]
    assert numbers(stable) == numbers_of_client(life, kafka, "stable") == [0, 1, 2, 3]
    rows = changes.cache().filter("_type in ('stable', 'tentative')")
    assert numbers(rows) == [n for n in numbers_of_client(life, kafka, "changes") if n is not None]
    assert numbers(rows) == [0, 1, 200, 201, 2, 3, 500]
    assert sorted(numbers(latest)) == sorted(numbers_of_client(life, kafka, "latest"))
    assert numbers(latest.filter("_tentative")) == [500]
    undone = expr("undo._after_seq < row._seq and row._seq <= undo._seq")
    tentative, undos = changes.filter("_type = 'tentative'").alias("row"), changes.filter("_type = 'undo'").alias("undo")
    assert numbers(tentative.join(undos, undone, "left_anti")) == [500]


def numbers(frame: DataFrame) -> list[int]:
    return [row.n for row in frame.collect()]


def numbers_of_client(life: Life, kafka: KafkaServer, view: str) -> list[int]:
    with CorrectedStream(life.name, kafka.bootstrap) as stream:
        return list(stream.frame(view).to_arrow().column("n").to_pylist())


@pytest.mark.soak
def test_a_restarted_stream_neither_repeats_nor_loses(
    spark: SparkSession, life: Life, kafka: KafkaServer, tmp_path: Path
) -> None:
    """Also the batch that failed in the middle: it is run again with the rows that it had, though there are more by now."""
    guess(life)
    taken = Taken(fail_at=1)
    run(of(life, kafka, "changes", spark.readStream).select("_type", "_seq", "n", "_tentative"), taken, tmp_path)
    heal(life)
    with pytest.raises(PySparkException, match="the sink is away"):
        run(of(life, kafka, "changes", spark.readStream).select("_type", "_seq", "n", "_tentative"), taken, tmp_path)
    first, failed = taken.batches[0], taken.batches[1]
    life.give(data(3, 1, epoch=1))
    life.settle()
    run(of(life, kafka, "changes", spark.readStream).select("_type", "_seq", "n", "_tentative"), taken, tmp_path)
    assert (taken.batches[0], taken.batches[1]) == (first, failed)
    assert [(kind, n) for kind, _, n, _ in taken.rows] == [
        ("stable", 0), ("stable", 1), ("boundary", None), ("tentative", 200), ("tentative", 201), ("undo", None),
        ("stable", 201), ("rec_done", None), ("stable", 3),
    ]  # fmt: skip
    assert [seq for _, seq, _, _ in taken.rows] == [*range(1, 10)]


@pytest.mark.soak
def test_stable_rows_come_once_in_small_batches_too(
    spark: SparkSession, life: Life, kafka: KafkaServer, tmp_path: Path
) -> None:
    for n in range(3):
        life.give(data(2 * n, 2))
        life.settle()
    taken = Taken()
    columns = spark.readStream.schema("n double, name string")
    run(of(life, kafka, "stable", columns, max_rows=4), taken, tmp_path)
    assert [len(rows) for rows in taken.batches.values()] == [4, 2]
    assert [n for n, _ in taken.rows] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    life.give(data(6, 1))
    life.settle()
    run(of(life, kafka, "stable", columns), taken, tmp_path)
    assert [n for n, _ in taken.rows][6:] == [6.0]


@pytest.mark.soak
def test_a_stream_of_the_latest_rows_is_a_table_of_keys(
    spark: SparkSession, life: Life, kafka: KafkaServer, tmp_path: Path
) -> None:
    guess(life)
    heal(life)
    taken = Taken()
    run(of(life, kafka, "latest", spark.readStream).select("_key", "n", "_tentative", "_deleted"), taken, tmp_path)
    rows = [(json.loads(key), *row) for key, *row in taken.rows]
    assert rows[:2] == [("k0é", 0, False, False), ("k1é", 1, False, False)]
    assert rows[2:4] == [("k2é", 200, True, False), ("k0é", 201, True, False)]
    table = {key: (n, is_deleted) for key, n, _, is_deleted in rows}
    assert table == {"k0é": (201, False), "k1é": (1, False), "k2é": (None, True)}


@pytest.mark.soak
def test_a_stream_does_not_pass_over_what_is_gone(
    spark: SparkSession, life: Life, kafka: KafkaServer, tmp_path: Path
) -> None:
    life.give(data(0, 2))
    life.settle()
    run(of(life, kafka, "stable", spark.readStream), Taken(), tmp_path)
    life.close()
    delete(life.cluster, [f"{life.name}.stable"])
    with closing(life.cluster.make_admin()) as admin:
        wait_until(lambda: f"{life.name}.stable" not in admin.list_topics(), "it is gone")
    ensure(life.cluster, [TopicSpec(f"{life.name}.stable", 1)])
    with pytest.raises(PySparkException, match="was deleted and made again"):
        run(of(life, kafka, "stable", spark.readStream.schema("n long")), Taken(), tmp_path)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda reader: reader.option("query", "nope"), r"query: has no topic nope.stable"),
        (lambda reader: reader.option("view", "all"), "choose one of stable, latest, changes"),
        (lambda reader: reader.option("bootstrap", ""), "bootstrap: is missing"),
        (lambda reader: reader, "cannot be told: .* has no row yet"),
        (lambda reader: reader.schema("n binary"), r"schema.n: is not a type of it .*'binary'"),
    ],
)
def test_what_cannot_be_read_is_said(
    spark: SparkSession, life: Life, kafka: KafkaServer, read: Callable[[Any], Any], message: str
) -> None:
    reader = spark.read.format("boreal").option("query", life.name).option("bootstrap", kafka.bootstrap)
    with pytest.raises(PySparkException, match=message):
        read(reader).load().collect()
