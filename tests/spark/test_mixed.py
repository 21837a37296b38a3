"""A pair of replicas, one with its operators beside it and one with them in Spark: they write the same rows, and whoever reads
them changes between the two without loss or repetition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pytest

from bench.deployment import Deployment, wait_until
from boreal.model.frames import Data, LogId
from services.storage.kafka_log import KafkaLogStore
from tests.stack.breaking import QUERY, X_S, Bench, flowing

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.soak, pytest.mark.xdist_group("servers")]

READY_S = 180.0
KEYS = 5
"""So many rows come of each second."""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    query = {**QUERY, "name": "mixed", "engine": ["native", "spark"]}
    with flowing(tmp_path_factory.mktemp("mixed"), query, ready_s=READY_S) as bench:
        bench.check(bench.mark(), may_be_late=True)  # a job that was just started is slow at first
        yield bench


def read_from(deployment: Deployment) -> str:
    """The replica whose row the client's stream had last."""
    return next(record["replica"] for record in reversed(deployment.changes()) if record["type"] == "stable")


def stable_rows(deployment: Deployment, replica: str) -> tuple[int, pa.Table]:
    """The first id and the rows of a replica's own log, which may not skip any."""
    with closing(KafkaLogStore(deployment.clusters, deployment.layout)) as store:
        log = store.open(LogId("per_key", replica, 0))
        frames = [frame for _, frame in log.read(log.start, 1_000_000) if isinstance(frame, Data) and not frame.tentative]
    batches: list[pa.RecordBatch] = []
    next_id = first_id = frames[0].first_id
    for frame in frames:
        assert frame.first_id <= next_id, f"{replica} skips ids before {frame.first_id}"
        # A new life may write again what its last one wrote.
        batches.append(frame.batch.slice(next_id - frame.first_id))
        next_id = max(next_id, frame.first_id + frame.batch.num_rows)
    return first_id, pa.Table.from_batches(batches)


def test_only_the_replica_in_spark_has_a_job(mixed: Bench) -> None:
    deployment = mixed.deployment
    assert [name for name in deployment.services if name.startswith("spark")] == ["spark.mixed.r1"]
    nodes = [status for name, status in deployment.statuses().items() if name.startswith("node.")]
    assert {(entry["replica"], entry["engine"]) for node in nodes for entry in node["instances"]} == {
        ("r0", "native"),
        ("r1", "spark"),
    }


def test_who_reads_one_changes_to_the_other_and_back(mixed: Bench) -> None:
    deployment = mixed.deployment
    first = read_from(deployment)
    other = {"r0": "r1", "r1": "r0"}[first]
    # A reader may come back by itself, where the one that it changed to is far behind.
    for dead, read in ((first, other), (other, first)):
        def has_changed(read: str = read) -> bool:
            return read_from(deployment) == read

        since = mixed.mark()
        with deployment.dead(f"node.{dead}"):
            wait_until(has_changed, f"{read} is read", deployment.explain)
            mixed.breathe(1)
        mixed.check(since)


@pytest.mark.soak
def test_a_job_that_dies_is_made_up_for_by_the_replica_without_one(mixed: Bench) -> None:
    deployment = mixed.deployment
    since = mixed.mark()
    deployment.kill("spark.r1")
    mixed.breathe(3)
    mixed.check(since)


def test_both_answer_an_outage_alike_and_log_the_same_rows_under_the_same_ids(mixed: Bench) -> None:
    since, deployment = mixed.mark(), mixed.deployment
    with deployment.dead("monitor"):  # so that nobody trims the logs
        mixed.breathe(1)
        with deployment.cut("source.left"):
            mixed.breathe(2 * X_S)
        wait_until(lambda: set(deployment.states().values()) == {"STABLE"}, "the outage is corrected", deployment.explain)
        mixed.breathe(1)
        (first, one), (other_first, other) = (stable_rows(deployment, replica) for replica in ("r0", "r1"))
    assert mixed.check(since)["tentative"] > 0
    begin, end = max(first, other_first), min(first + one.num_rows, other_first + other.num_rows)
    assert end - begin > 2 * X_S * KEYS, "more than those of the outage"
    assert one.schema == other.schema
    assert one.slice(begin - first, end - begin).to_pylist() == other.slice(begin - other_first, end - begin).to_pylist()
