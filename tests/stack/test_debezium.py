"""q.debezium on a real Kafka: what a reader of Debezium's envelopes holds, through undos, deaths and new lives."""

from __future__ import annotations

import json
import subprocess
from base64 import b64encode
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from boreal.model.frames import Data, Origin, Undo
from boreal.model.schema import Schema
from services.hosting.fetch import artifacts, java, kafka_jars
from services.kafka.clusters import Cluster
from services.kafka.topics import TopicSpec, ensure
from services.stack.servers import KafkaServer
from tests.registry import PINS
from tests.stack.lives import SCHEMA, Life, boundary, cluster_of, data, records_of
from tests.waiting import wait_until

TESTS = Path(__file__).parents[1]

pytestmark = pytest.mark.usefixtures("servers")


@pytest.fixture
def cluster(kafka: KafkaServer) -> Cluster:
    return cluster_of(kafka)


class Table:
    """A reader as Debezium documents it: a change tells what was there before, and a deletion is followed by a tombstone."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.ops = ""

    def take(self, record: Any) -> None:
        key = json.loads(record.key)
        name = key["payload"]["name"]
        check(key["schema"], key["payload"])
        if record.value is None:
            assert name not in self.rows, "a tombstone without its deletion"
            return
        value = json.loads(record.value)
        check(value["schema"], value["payload"])
        change = value["payload"]
        known = self.rows.get(name)
        # A row of another version of the query has the columns of this one.
        assert change["before"] == (known and {column: known.get(column) for column in change["before"]})
        assert change["op"] == {(True, False): "c", (False, False): "u", (False, True): "d"}[
            change["before"] is None, change["after"] is None
        ]
        assert change["source"]["tentative"] == ("tentative" in dict(record.headers))
        self.ops += change["op"]
        self.rows.pop(name, None)
        if change["after"] is not None:
            assert change["after"]["name"] == name
            self.rows[name] = change["after"]


def check(schema: dict[str, Any], payload: Any) -> None:
    """What a converter of Connect checks: each value is of the type that its schema says."""
    if payload is None:
        assert schema["optional"]
    elif schema["type"] == "struct":
        assert [field["field"] for field in schema["fields"]] == list(payload)
        for field in schema["fields"]:
            check(field, payload[field["field"]])
    else:
        assert isinstance(payload, {"string": str, "int64": int, "double": float, "boolean": bool}[schema["type"]])


def shown(cluster: Cluster, topic: str) -> tuple[dict[str, int], str]:
    table = Table()
    for record in records_of(cluster, topic):
        table.take(record)
    return {name: row["n"] for name, row in table.rows.items()}, table.ops


def read_by(name: str, jars: Path, lines: list[str]) -> list[str]:
    """What a program of tests/java makes of these lines."""
    program = java()
    if "jdk.compiler" not in subprocess.run([program, "--list-modules"], capture_output=True, text=True).stdout:
        pytest.skip("this Java has no compiler")
    path = f"{jars}/*:{kafka_jars()}/*"
    source = TESTS / "java" / f"{name}.java"
    command: list[str | Path] = [program, "-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8", "-cp", path, source]
    done = subprocess.run(command, input="".join(f"{line}\n" for line in lines), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def rows_by_connect(cluster: Cluster, topic: str) -> dict[str, int]:
    """The rows that are left by what Connect's converter and Debezium's transformation make of a topic."""
    parts = [(record.key, record.value or b"") for record in records_of(cluster, topic)]
    lines = [f"{b64encode(key).decode()} {b64encode(value).decode()}" for key, value in parts]
    rows: dict[str, int] = {}
    for line in read_by("ReadDebezium", artifacts("connect", PINS), lines):
        name, _, n = line.rpartition(" ")
        rows.pop(name, None)
        if n != "-":
            rows[name] = int(n)
    return rows


def rows_by_flink(cluster: Cluster, topic: str) -> dict[str, int]:
    """The rows that are left by what Flink's format makes of a topic. Flink takes back rows that it has, and no others."""
    values = [b64encode(record.value or b"").decode() for record in records_of(cluster, topic)]
    rows: dict[str, int] = {}
    for line in read_by("ReadByFlink", artifacts("flink", TESTS / "flink"), values):
        kind, name, n = line.split(" ")
        if kind in ("-U", "-D"):
            assert rows.pop(name) == int(n)
        else:
            assert name not in rows
            rows[name] = int(n)
    return rows


@pytest.mark.soak
def test_every_change_of_a_key_is_an_envelope_and_an_undo_a_deletion(cluster: Cluster, fresh_name: str) -> None:
    ensure(cluster, [TopicSpec(f"{fresh_name}.{which}", 1) for which in ("out", "stable", "debezium")])
    topic = f"{fresh_name}.debezium"
    first = Life(cluster, fresh_name, has_debezium=True)
    first.give(data(0, 2), boundary(100, 2), data(2, 3, tentative=True))
    first.give(Undo(Origin("r0", 1), 1, 1))
    first.settle()
    # k2é had only a tentative row: it is deleted. The others have their stable rows again.
    wait_until(lambda: shown(cluster, topic) == ({"k0é": 0, "k1é": 1}, "cccuuduu"), "the undo")
    first.give(data(2, 2, tentative=True, epoch=1))
    first.settle()
    wait_until(lambda: shown(cluster, topic)[0] == {"k0é": 3, "k1é": 1, "k2é": 2}, "tentative rows")
    first.close()
    # A new life goes on from what the topic says: what was tentative is revoked, and the rest stays.
    second = Life(cluster, fresh_name, has_debezium=True)
    wait_until(lambda: shown(cluster, topic)[0] == {"k0é": 0, "k1é": 1}, "the new life")
    second.give_rows(3)
    wait_until(lambda: shown(cluster, topic)[0] == {"k0é": 3, "k1é": 4, "k2é": 2}, "stable rows")
    second.close()
    assert not first.codes and not second.codes
    assert rows_by_connect(cluster, topic) == rows_by_flink(cluster, topic) == {"k0é": 3, "k1é": 4, "k2é": 2}


def test_another_version_of_the_query_goes_on_with_its_own_columns(cluster: Cluster, fresh_name: str) -> None:
    """Rows of the version before, stable and tentative, in the topic and not there yet, get the columns of this one."""
    ensure(cluster, [TopicSpec(f"{fresh_name}.{which}", 1) for which in ("out", "stable", "debezium")])
    topic = f"{fresh_name}.debezium"
    wide = Schema.of({"name": "string", "m": "int", "n": "int"})
    first = Life(cluster, fresh_name, has_debezium=True)
    first.give(data(0, 2), boundary(100, 2), data(2, 1, tentative=True), data(3, 1, tentative=True))
    first.settle()
    wait_until(lambda: shown(cluster, topic)[0] == {"k0é": 3, "k1é": 1, "k2é": 2}, "rows of the first version")
    first.close()
    between = Life(cluster, fresh_name)
    between.give_rows(1)
    between.settle()
    between.close()
    second = Life(cluster, fresh_name, has_debezium=True, schema=wide, version=2, others={1: SCHEMA})
    wait_until(lambda: shown(cluster, topic)[0] == {"k0é": 0, "k1é": 1, "k2é": 2}, "the rows that were lacking")
    batch = pa.RecordBatch.from_pylist([{"time": 3, "name": "k0é", "m": 30, "n": 3}], schema=wide.arrow)
    second.give(Data(Origin("r0", 1), second.epoch, 3, batch, False, ((1, 0),), 0))
    wait_until(lambda: shown(cluster, topic)[0]["k0é"] == 3, "rows of the second version")
    second.close()
    row = json.loads(records_of(cluster, topic)[-1].value)["payload"]["after"]
    assert (row["m"], row["n"]) == (30, 3)
    third = Life(cluster, fresh_name, has_debezium=True, version=1, others={2: wide})
    third.give_rows(2)
    wait_until(lambda: shown(cluster, topic)[0] == {"k0é": 3, "k1é": 4, "k2é": 5}, "rows of the first version again")
    third.close()
    assert not first.codes and not second.codes and not third.codes
