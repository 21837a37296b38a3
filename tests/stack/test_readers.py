"""The example readers in Python and in Java, without boreal: they print what CorrectedStream delivers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from boreal.client import CorrectedStream, Stable, Tentative, Undo
from boreal.model.frames import Origin
from boreal.model.frames import Undo as UndoFrame
from services.hosting.fetch import java, kafka_jars
from services.kafka.topics import TopicSpec, ensure
from services.stack.servers import KafkaServer
from tests.stack.lives import Life, boundary, cluster_of, data, records_of

pytestmark = pytest.mark.usefixtures("servers")

READERS = Path(__file__).parents[2] / "examples" / "readers"


@pytest.fixture
def results(kafka: KafkaServer, fresh_name: str) -> str:
    """A query whose q.out has tentative rows, corrections, two lives of the writer, records that the first one sent after its
    end, and stable rows that were written twice. Returns its name."""
    cluster, out = cluster_of(kafka), f"{fresh_name}.out"
    ensure(cluster, [TopicSpec(out, 1), TopicSpec(f"{fresh_name}.stable", 1)])
    with closing(Life(cluster, fresh_name)) as life:
        life.give(data(0, 2), boundary(100, 2), data(2, 3, tentative=True, at=200), UndoFrame(Origin("r0", 1), 1, 1, "jfk#1"))
        life.give(data(2, 2, epoch=1, at=200), data(4, 2, tentative=True, epoch=1, at=300))
        life.settle()
    of_the_first = records_of(cluster, out)
    with closing(Life(cluster, fresh_name)) as life:
        life.give_rows(3)
        life.give(data(life.next_id, 2, tentative=True, epoch=life.epoch, at=500))
        life.settle()
    of_the_second = records_of(cluster, out)[len(of_the_first) :]
    with closing(cluster.make_producer()) as producer:
        for record in (*of_the_first, *(record for record in of_the_second if b'"type":"stable"' in record.value)):
            producer.send(out, record.value, key=record.key, headers=list(record.headers), partition=0)
        producer.flush()
    return fresh_name


def delivered(query: str, bootstrap: str) -> Iterator[tuple[str, Any]]:
    with CorrectedStream(query, bootstrap) as stream:
        for change in stream.changes(until="now"):
            match change:
                case Stable(data=row):
                    yield "stable", row
                case Tentative(data=row):
                    yield "tentative", row
                case Undo(revoked=revoked):
                    yield "undo", len(revoked)


def printed(*command: object) -> list[tuple[str, Any]]:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120, check=True)
    parted = (line.partition(" ") for line in done.stdout.splitlines())
    return [(kind, json.loads(rest)) for kind, _, rest in parted]


def test_the_history_has_all_that_a_reader_must_handle(results: str, kafka: KafkaServer) -> None:
    records = records_of(cluster_of(kafka), f"{results}.out")
    incarnations = [int(dict(record.headers)["incarnation"]) for record in records]
    ids = [int(dict(record.headers)["id"]) for record in records if "id" in dict(record.headers)]
    assert incarnations != sorted(incarnations), "records of a writer that was replaced"
    assert len(ids) > len(set(ids)), "stable rows that are written twice"
    assert {kind for kind, _ in delivered(results, kafka.bootstrap)} == {"stable", "tentative", "undo"}


def test_the_reader_in_python(results: str, kafka: KafkaServer) -> None:
    found = printed(sys.executable, "-I", READERS / "reader.py", kafka.bootstrap, results, "now")
    assert found == list(delivered(results, kafka.bootstrap))


def test_the_reader_in_java(results: str, kafka: KafkaServer) -> None:
    modules = subprocess.run([java(), "--list-modules"], capture_output=True, text=True, check=True).stdout
    if "jdk.compiler" not in modules:
        pytest.skip(f"{java()} has no compiler: install a JDK to test the reader in Java")
    jars = os.path.join(kafka_jars(), "*")
    found = printed(java(), "-cp", jars, READERS / "Reader.java", kafka.bootstrap, results, "now")
    assert found == list(delivered(results, kafka.bootstrap))
