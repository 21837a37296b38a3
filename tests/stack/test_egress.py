"""The egress on a real Kafka: what its topics hold through lives, deaths and zombies."""

from __future__ import annotations

import csv
import json
import os
import signal
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pytest
from kafka import TopicPartition

from bench.warm_processes import AnyProcess, start_process
from boreal.model.frames import Anchor, Boundary, Data, LogId, Origin, RecDone, Start, State, Undo
from boreal.model.schema import Schema
from boreal.query.plan import EGRESS
from boreal.query.planner import plan
from boreal.query.spec import load_query
from deployment.layout import Layout
from deployment.query_record import QueryRecord
from formats.changelog import ChangelogPlace
from formats.client_headers import decode_anchor, decode_place
from logs.egress_restart import egress_restart
from logs.memory_log import MemoryLogStore
from services.egress import stable as stable_module
from services.egress.stable import StableTopic
from services.egress.tail import OutTail, read_out_tail, read_stable_tail
from services.hosting import failpoints
from services.hosting.fetch import artifacts
from services.hosting.process import EXIT_FENCED, EXIT_STOPPED, now_us
from services.kafka.clusters import Cluster
from services.kafka.queries import QueryRegistry
from services.kafka.topics import STATUS, TopicSpec, ensure, query_topics, system_topics
from services.stack.servers import KafkaServer
from services.storage import log_partition
from services.storage.kafka_log import KafkaLogStore
from services.storage.log_partition import FIRST_WINDOW
from tests.otlp import receiving
from tests.registry import PINS
from tests.stack.lives import (
    Life,
    boundary,
    cluster_of,
    data,
    records_of,
    replayed,
    stable_by_confluent,
    stable_of,
    values_of,
)
from tests.stack.test_debezium import TESTS, read_by
from tests.thoroughness import every
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("servers")


# The outlet by itself: frames in, records out, no instance.


@pytest.fixture(params=["auto", pytest.param("kafka-python", marks=pytest.mark.soak)])
def cluster(kafka: KafkaServer, request: pytest.FixtureRequest) -> Cluster:
    """With either client that writes for readers."""
    return cluster_of(kafka, row_producer=request.param)


@pytest.fixture
def live(cluster: Cluster, fresh_name: str) -> Iterator[Callable[[], Life]]:
    """Begins a new life of the same egress."""
    ensure(cluster, [TopicSpec(f"{fresh_name}.out", 1), TopicSpec(f"{fresh_name}.stable", 1)])
    lives: list[Life] = []

    def begin() -> Life:
        lives.append(Life(cluster, fresh_name))
        return lives[-1]

    yield begin
    for life in lives:
        life.close()


def test_frames_become_records(live: Callable[[], Life], cluster: Cluster, kafka: KafkaServer) -> None:
    life = live()
    life.give(data(0, 2), boundary(100, 2), data(2, 2, tentative=True, at=200), Undo(Origin("r0", 1), 1, 1, "jfk#1"))
    life.give(data(2, 3, epoch=1, at=200), RecDone(Origin("r0", 1), 1, "jfk#1"))
    life.settle()
    out = records_of(cluster, f"{life.name}.out")
    values = [json.loads(record.value) for record in out]
    assert [value["type"] for value in values] == (
        ["stable"] * 2 + ["boundary"] + ["tentative"] * 2 + ["undo"] + ["stable"] * 3 + ["rec_done"]
    )
    ids, lines = stable_of(cluster, f"{life.name}.stable")
    assert ids == [0, 1, 2, 3, 4]
    assert lines == stable_by_confluent(kafka, f"{life.name}.stable")
    assert replayed(values) == [json.dumps(json.loads(line)) for line in lines]
    assert lines[0] == '{"time":"1970-01-01T00:00:00Z","name":"k0\\u00e9","n":0}'
    assert [record.key for record in out[:3]] == [b'"k0\\u00e9"', b'"k1\\u00e9"', None]
    headers = dict(out[2].headers)
    assert decode_anchor(headers["anchor"]) == boundary(100, 2).anchor
    assert decode_place(headers["place"]) == ChangelogPlace(3, 2, 0, 2, 0, 100, 100, 2)
    assert life.codes == []


def test_delays_count_until_kafka_has_the_rows(live: Callable[[], Life]) -> None:
    life = live()
    life.give(data(0, 3))
    life.settle()
    summary = life.delays.summary_ms(time.time_ns() // 1_000)
    assert life.delays.violations == 3 and summary["max"] is not None and summary["max"] > 1_000_000


def test_a_new_life_goes_on_where_the_last_one_left_off(live: Callable[[], Life], cluster: Cluster) -> None:
    first = live()
    first.give(data(0, 2), boundary(100, 2), data(2, 2), data(4, 3, tentative=True))
    first.settle()
    second = live()
    assert second.tail == OutTail(
        ChangelogPlace(8, 5, 0, 4, 3, 100, 100, 4, 3, 0), 1, boundary(100, 2).anchor, 3, 8, second.tail.lacking_from
    )
    second.give_rows(2)
    second.settle()
    values = values_of(cluster, f"{first.name}.out")
    assert (values[8]["type"], values[8]["after_seq"], values[8]["epoch"]) == ("undo", 5, 1)
    assert len(replayed(values)) == 6
    assert second.out.changelog.place.n_undone == 3
    assert stable_of(cluster, f"{first.name}.stable")[0] == list(range(6))


def test_the_tail_is_found_far_from_the_end(live: Callable[[], Life]) -> None:
    first = live()
    first.give(data(0, 2), boundary(100, 2), data(2, 3 * FIRST_WINDOW, tentative=True, at=200))
    first.settle()
    tail = live().tail
    assert tail.place == ChangelogPlace(3 + 3 * FIRST_WINDOW, 2, 0, 2, 3 * FIRST_WINDOW, 100, 3300, 2, 3 * FIRST_WINDOW, 0)
    assert tail.anchor == boundary(100, 2).anchor


def test_what_was_deleted_by_age_is_not_counted_anew(live: Callable[[], Life], cluster: Cluster) -> None:
    first = live()
    first.give(data(0, 7), boundary(100, 7))
    first.settle()
    with closing(cluster.make_admin()) as admin:
        admin.delete_records({TopicPartition(f"{first.name}.out", 0): 8})
    second = live()
    assert second.tail == OutTail(ChangelogPlace(seq=8, epoch=8, next_stable_id=7), 8, None, second.tail.written_to, 8, 8)
    second.give_rows(1)
    second.settle()
    assert [value["seq"] for value in values_of(cluster, f"{first.name}.out")] == [9, 10]
    assert stable_of(cluster, f"{first.name}.stable")[0] == list(range(8))


def test_rows_that_were_deleted_from_q_stable_by_age_are_not_given_again(live: Callable[[], Life], cluster: Cluster) -> None:
    """As with results that are rare: q.out has its boundaries, in whose segments Kafka keeps rows longer."""
    first = live()
    first.give(data(0, 3), boundary(100, 3))
    first.settle()
    first.give(boundary(200, 3))
    first.settle()
    first.close()
    stable, partition = f"{first.name}.stable", TopicPartition(f"{first.name}.stable", 0)
    with closing(cluster.make_admin()) as admin, closing(cluster.make_consumer()) as consumer:
        admin.delete_records({partition: consumer.end_offsets([partition])[partition]})
    assert stable_of(cluster, stable)[0] == []
    second = live()
    second.give_rows(2)
    second.settle()
    assert stable_of(cluster, stable)[0] == [3, 4]


def test_a_row_with_a_trace_context_has_it_as_a_header_in_both_topics_and_after_a_restart(
    cluster: Cluster, fresh_name: str
) -> None:
    ensure(cluster, [TopicSpec(f"{fresh_name}.out", 1), TopicSpec(f"{fresh_name}.stable", 1)])
    schema = Schema.of({"name": "string", "n": "int", "traceparent": "string"})

    def traced(first_id: int, tentative: bool = False) -> Data:
        rows = [{"time": n, "name": "k", "n": n, "traceparent": f"00-{n}" if n % 2 else None} for n in (first_id, first_id + 1)]
        return replace(data(first_id, 2, tentative), batch=pa.RecordBatch.from_pylist(rows, schema=schema.arrow))

    out, stable = f"{fresh_name}.out", f"{fresh_name}.stable"
    life = Life(cluster, fresh_name, schema=schema)
    life.give(traced(0))
    life.settle()
    StableTopic(cluster, stable, f"boreal.{stable}", out, life.codes.append).close()  # from here on only q.out has rows
    life.give(traced(2), boundary(4, 4), traced(4, tentative=True))
    wait_until(lambda: len(life.out._sent) and life.out._sent[-1].is_given, "q.out has it all")
    second = Life(cluster, fresh_name, schema=schema)
    second.settle()
    wait_until(lambda: len(stable_of(cluster, stable)[0]) == 4, "q.stable has it all")
    second.close()
    life.close()
    found = {
        topic: [dict(record.headers).get("traceparent") for record in records_of(cluster, topic, topic == stable)]
        for topic in (out, stable)
    }
    assert found[stable] == [None, b"00-1", None, b"00-3"]
    assert [trace for trace in found[out] if trace] == [b"00-1", b"00-3", b"00-5"]


def test_rows_that_only_q_out_has_are_copied(
    live: Callable[[], Life], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a death between the two, here a long time before: they fill several windows."""
    window = 100
    monkeypatch.setattr(log_partition, "FIRST_WINDOW", window)
    first = live()
    first.give(data(0, 3), boundary(3, 3))
    first.settle()
    other = StableTopic(cluster, f"{first.name}.stable", f"boreal.{first.name}.stable", f"{first.name}.out", first.codes.append)
    for at in range(3, 3 + 6 * window):
        first.give(data(at), boundary(at + 1, at + 1))
    wait_until(lambda: len(first.out._sent) and first.out._sent[-1].is_given, "q.out has it all")
    assert read_stable_tail(cluster, f"{first.name}.stable", f"{first.name}.out") == 3
    other.close()
    second = live()
    second.give_rows(2)
    second.settle()
    ids, lines = stable_of(cluster, f"{first.name}.stable")
    assert ids == list(range(3 + 6 * window + 2))
    out = [record.value.decode() for record in records_of(cluster, f"{first.name}.out") if b'"type":"stable"' in record.value]
    assert all(f'"data":{line},' in record for line, record in zip(lines, out, strict=True))


def test_what_no_memory_may_hold_waits_in_q_out(
    live: Callable[[], Life], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stable_module, "WAITING_BYTES", 2_000)
    may_commit = threading.Event()
    life = live()
    assert life.stable is not None
    commit = life.stable._producer.commit_transaction
    monkeypatch.setattr(life.stable._producer, "commit_transaction", lambda: (may_commit.wait(), commit()))
    for _ in range(200):
        life.give_rows(3)
    wait_until(lambda: life.out._sent[-1].is_given, "q.out goes on")
    assert life.out.confirmed <= 1
    may_commit.set()
    life.settle()
    assert stable_of(cluster, f"{life.name}.stable")[0] == list(range(600))


def test_the_older_of_two_writers_is_fenced(live: Callable[[], Life], cluster: Cluster) -> None:
    first = live()
    first.give_rows(2)
    first.settle()
    second = live()
    second.give_rows(2)
    second.settle()
    first.give_rows(1)
    wait_until(lambda: EXIT_FENCED in first.codes, "the older one notices")
    tail = read_out_tail(cluster, f"{first.name}.out", None)
    assert (tail.incarnation, tail.place) == (2, second.out.changelog.place), "the zombie's record is void"
    second.give_rows(1)
    wait_until(lambda: EXIT_FENCED in second.codes, "the younger one finds a foreign record on q.out")
    third = live()
    third.give_rows(1)
    third.settle()
    assert third.codes == []
    assert stable_of(cluster, f"{first.name}.stable")[0] == list(range(6))


def test_a_commit_of_a_zombie_is_refused(live: Callable[[], Life], cluster: Cluster) -> None:
    first = live()
    first.give_rows(1)
    first.settle()
    second = live()
    assert first.stable is not None
    first.stable.put([stable_module.StableRow(1, None, b"{}", 0)], 7)
    wait_until(lambda: first.codes == [EXIT_FENCED], "the zombie is fenced")
    second.give_rows(1)
    second.settle()
    ids, lines = stable_of(cluster, f"{first.name}.stable")
    assert ids == [0, 1] and lines[1] != "{}"


# q.latest.


def table_of(cluster: Cluster, topic: str) -> dict[str, int]:
    """What a table over q.latest shows: the rows' n by their keys."""
    table: dict[str, int] = {}
    for record in records_of(cluster, topic):
        key = json.loads(record.key)
        table.pop(key, None)
        if record.value is not None:
            table[key] = json.loads(record.value)["n"]
    return table


@pytest.mark.soak
def test_flinks_connector_upsert_kafka_and_connects_converter_read_q_latest(cluster: Cluster, fresh_name: str) -> None:
    """What they make rows and deletions of records by, through an UNDO that leaves a key without a row."""
    ensure(cluster, [TopicSpec(f"{fresh_name}.{which}", 1) for which in ("out", "stable", "latest")])
    topic = f"{fresh_name}.latest"
    life = Life(cluster, fresh_name, has_latest=True)
    life.give(data(0, 2), boundary(100, 2), data(2, 3, tentative=True), Undo(Origin("r0", 1), 1, 1))
    wait_until(lambda: table_of(cluster, topic) == {"k0é": 0, "k1é": 1}, "the undo")
    assert latest_by_flink(cluster, topic) == latest_by_connect(cluster, topic) == ({"k0é": 0, "k1é": 1}, ["k2é"])
    life.give(data(2, 2, epoch=1))
    wait_until(lambda: table_of(cluster, topic) == {"k0é": 3, "k1é": 1, "k2é": 2}, "stable rows")
    assert latest_by_flink(cluster, topic)[0] == {"k0é": 3, "k1é": 1, "k2é": 2}
    life.close()
    assert not life.codes


def in_base64(cluster: Cluster, topic: str) -> list[str]:
    """A line for each record: its key and its value."""
    parts = [(record.key, record.value or b"") for record in records_of(cluster, topic)]
    return [f"{b64encode(key).decode()} {b64encode(value).decode()}" for key, value in parts]


def latest_by_connect(cluster: Cluster, topic: str) -> tuple[dict[str, int], list[str]]:
    """As `latest_by_flink`, by what Connect's converter makes of it."""
    rows: dict[str, int] = {}
    deleted: list[str] = []
    for line in read_by("ReadLatestByConnect", artifacts("connect", PINS), in_base64(cluster, topic)):
        key, n = line.split(" ")
        if n == "-":
            del rows[key]
            deleted.append(key)
        else:
            rows[key] = int(n)
    return rows, deleted


def latest_by_flink(cluster: Cluster, topic: str) -> tuple[dict[str, int], list[str]]:
    """(the rows by key that are left by what Flink's connector makes of a topic, the keys that it deletes on the way)."""
    rows: dict[str, int] = {}
    deleted: list[str] = []
    for line in read_by("ReadLatestByFlink", artifacts("flink", TESTS / "flink"), in_base64(cluster, topic)):
        kind, key, name, n = line.split(" ")
        name_of_key = json.loads(key)
        if kind == "-D":
            del rows[name_of_key]
            deleted.append(name_of_key)
        else:
            assert (kind, name) == ("+I", name_of_key)
            rows[name] = int(n)
    return rows, deleted


@pytest.mark.parametrize("format", ["csv", "arrow"])
def test_q_records_has_the_final_rows_in_csv_or_arrow_once_each(cluster: Cluster, fresh_name: str, format: str) -> None:
    """Through two lives. `tests/unit/formats/test_plain_rows.py` reads all types."""
    ensure(cluster, [TopicSpec(f"{fresh_name}.{which}", 1) for which in ("out", "stable", "records")])
    topic = f"{fresh_name}.records"

    def written() -> list[Any]:
        return records_of(cluster, topic, read_committed=True)

    for rows in (3, 7):
        life = Life(cluster, fresh_name, format=format)
        life.give(data(life.next_id, rows - life.next_id, epoch=life.epoch), boundary(100, rows, life.epoch))
        life.give(data(rows, 2, tentative=True, epoch=life.epoch))
        wait_until(lambda wanted=rows: len(written()) == wanted, "the stable rows")  # type: ignore[misc]
        life.close()
        assert not life.codes
    found = written()
    assert [int(dict(record.headers)["id"]) for record in found] == [*range(7)]
    stable = [json.loads(record.value) for record in records_of(cluster, f"{fresh_name}.stable", read_committed=True)]
    if format == "csv":
        assert [next(csv.reader([record.value.decode()])) for record in found] == [[*map(str, row.values())] for row in stable]
    else:
        [*tables] = [pa.ipc.open_stream(record.value).read_all().to_pylist() for record in found]
        assert tables == [[{**row, "time": datetime.fromisoformat(row["time"])}] for row in stable]


def test_q_latest_claims_no_row_that_it_does_not_show(cluster: Cluster, fresh_name: str) -> None:
    """It may end after any of its records: a new life goes on from what the last one says to be there."""
    ensure(cluster, [TopicSpec(f"{fresh_name}.{which}", 1) for which in ("out", "stable", "latest")])
    topic = f"{fresh_name}.latest"
    life = Life(cluster, fresh_name, has_latest=True)
    life.give(data(0, 7), data(7, 5), boundary(100, 12))
    wait_until(lambda: table_of(cluster, topic) == {"k0é": 9, "k1é": 10, "k2é": 11}, "q.latest has all rows")
    shown: dict[str, int] = {}
    for record in records_of(cluster, topic):
        shown[json.loads(record.key)] = json.loads(record.value)["n"]
        for n in range(int(dict(record.headers)["next_id"])):
            assert shown.get(f"k{n % 3}é", -1) >= n
    life.close()


def showing(cluster: Cluster, topic: str) -> Callable[[dict[str, int]], None]:
    """To be told what q.latest shows in the end."""
    return lambda expected: wait_until(lambda: table_of(cluster, topic) == expected, f"q.latest shows {expected}")


def test_the_newest_row_of_every_key(cluster: Cluster, fresh_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure(cluster, [TopicSpec(f"{fresh_name}.{which}", 1) for which in ("out", "stable", "latest")])
    shows = showing(cluster, f"{fresh_name}.latest")
    first = Life(cluster, fresh_name, has_latest=True)
    first.give(data(0, 2), boundary(100, 2), data(2, 3, tentative=True))
    shows({"k0é": 3, "k1é": 4, "k2é": 2})
    first.give(Undo(Origin("r0", 1), 1, 1))
    shows({"k0é": 0, "k1é": 1})
    first.give(data(2, 2, tentative=True, epoch=1))
    shows({"k0é": 3, "k1é": 1, "k2é": 2})
    first.settle()
    monkeypatch.setattr(first.out, "_tables", [])
    first.give(Undo(Origin("r0", 1), 2, 1), data(2, 1, epoch=2, at=5))
    first.settle()
    second = Life(cluster, fresh_name, has_latest=True)
    shows({"k0é": 0, "k1é": 1, "k2é": 5})
    second.give_rows(1)
    shows({"k0é": 3, "k1é": 1, "k2é": 5})
    first.close()
    second.close()


def write_again(cluster: Cluster, topic: str, records: list[Any]) -> None:
    """As an earlier life does that was frozen with these on their way."""
    with closing(cluster.make_producer()) as zombie:
        for record in records:
            zombie.send(topic, record.value, key=record.key, headers=record.headers, partition=0)


@pytest.mark.parametrize("is_idle", every(2, [False, True]))
def test_what_a_zombie_writes_to_q_latest_is_put_right(cluster: Cluster, fresh_name: str, is_idle: bool) -> None:
    ensure(cluster, [TopicSpec(f"{fresh_name}.{which}", 1) for which in ("out", "stable", "latest")])
    topic = f"{fresh_name}.latest"
    shows = showing(cluster, topic)
    first = Life(cluster, fresh_name, has_latest=True)
    first.give(data(0, 3), boundary(100, 3), data(3, 2, tentative=True))
    shows({"k0é": 3, "k1é": 4, "k2é": 2})
    first.close()
    old = records_of(cluster, topic)
    second = Life(cluster, fresh_name, has_latest=True)
    second.give_rows(5)
    shows({"k0é": 6, "k1é": 7, "k2é": 5})
    write_again(cluster, topic, old[2:4])
    shows({"k0é": 3, "k1é": 7, "k2é": 2})
    if is_idle:
        assert second.latest is not None
        second.latest.look_for_others()
    else:
        second.give(data(8, tentative=True, epoch=second.epoch, at=10))
    wait_until(lambda: EXIT_FENCED in second.codes, "it finds what the zombie wrote")
    second.close()
    third = Life(cluster, fresh_name, has_latest=True)
    shows({"k0é": 6, "k1é": 7, "k2é": 5})
    third.give_rows(1)
    shows({"k0é": 6, "k1é": 7, "k2é": 8})
    assert third.latest is not None
    third.latest.look_for_others()
    third.close()
    assert third.codes == []


# Where to begin.


def test_trimmed_inputs_are_left_out_by_id() -> None:
    """Two shards, of which one has lost its rows before the time 5: the egress's row 7 is the first at 10 or later."""
    sharded = plan(load_query({**spec_of("q"), "shards": 2, "tuning": {"bucket": "10us"}}))
    layout = Layout(sharded, ("a",))
    inputs = layout.input_logs(layout.egress_instance("a"))
    assert len(inputs) == 2
    logs = MemoryLogStore()
    for key, times in zip(inputs, ([1, 2, 3, 5, 12, 14], [2, 4, 9, 11, 30]), strict=True):
        log = logs.open(inputs[key][0])
        log.append(Start(Origin("r0", 1), 0, 0))
        for id_, at in enumerate(times):
            log.append(data(id_, at=at))
            log.append(boundary(at + 1, id_ + 1))
    trimmed, whole = inputs
    logs.open(inputs[trimmed][0]).trim(2)
    tail = OutTail(ChangelogPlace(seq=9, epoch=4, next_stable_id=2), 3, None, 2, 9, 0)
    restart, is_lossy = egress_restart(sharded, tail, inputs, logs.open)
    output = f"{sharded.fragment(EGRESS).outputs[0].name}/0"
    assert is_lossy and (restart.incarnation, restart.epoch, restart.position, restart.muted_until) == (4, 4, 10, 10)
    assert (restart.made, restart.written, restart.inputs) == ({output: 7}, {output: 2}, {trimmed: 4, whole: 3})


def test_whole_inputs_are_read_from_the_anchor() -> None:
    simple = plan(load_query(spec_of("q")))
    inputs = Layout(simple, ("a",)).input_logs(Layout(simple, ("a",)).egress_instance("a"))
    logs = MemoryLogStore()
    logs.open(inputs["f/0"][0]).append(data(0, 5))
    anchor = Anchor(3, 3, (("q/0", 3),), (("f/0", 3),))
    tail = OutTail(ChangelogPlace(seq=9, epoch=4, next_stable_id=4), 1, anchor, 3, 9, 0)
    restart, is_lossy = egress_restart(simple, tail, inputs, logs.open)
    assert not is_lossy
    assert (restart.position, restart.made, restart.written, restart.inputs) == (3, {"q/0": 3}, {"q/0": 4}, {"f/0": 3})
    first, _ = egress_restart(simple, OutTail(None, 0, None, 0, 0, 0), inputs, logs.open)
    assert (first.incarnation, first.epoch, first.written) == (1, -1, {})


def test_a_skip_is_told_in_the_undo(live: Callable[[], Life], cluster: Cluster) -> None:
    first = live()
    first.give(data(0, 2))
    first.settle()
    second = Life(cluster, first.name, skip_to=5)
    second.give_rows(1)
    second.settle()
    second.close()
    undo = values_of(cluster, f"{first.name}.out")[2]
    assert (undo["type"], undo["cause"]) == ("undo", "the stable rows 2 to 4 were lost")
    assert stable_of(cluster, f"{first.name}.stable")[0] == [0, 1, 5]
    assert second.out.changelog.place.n_skipped == 3


# The whole process, behind a replica's log that is written by hand.

BUCKET, BUCKET_US = "100ms", 100_000


def spec_of(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "streams": {"s": {"topic": "s", "time": "at", "schema": {"name": "string", "n": "int"}, "key": ["name"]}},
        "operators": {"f": {"filter": "s", "where": "n >= 0"}},
        "output": "f",
        "delay_threshold": "600ms",
        "tuning": {"bucket": BUCKET},
        "replicas": 1,
        "engine": "native",
        "latest": True,
    }


class Replica:
    """Writes the log of the fragment `main` as its one replica would, and repeats its boundary all the time. Row n has the
    time n * 10 ms, and n in all columns that are numbers."""

    def __init__(self, server: KafkaServer, layout: Layout) -> None:
        cluster = cluster_of(server)
        self.layout = layout
        self.schema = layout.plan.output.schema
        self.store = KafkaLogStore({"a": cluster}, self.layout)
        self.log = self.store.open(LogId("f", "r0", 0))
        self.origin = Origin("r0", 1)
        self.epoch = 0
        self.next_id = 0
        self.through = 0
        self.state = State.STABLE
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self.log.append(Start(self.origin, 0, 0))
        self._thread = threading.Thread(target=self._beat)
        self._thread.start()

    def _beat(self) -> None:
        while not self._stopping.wait(0.04):
            with self._lock:
                self.log.append_later(Boundary(self.origin, self.epoch, self.through, False, now_us(), now_us(), self.state))

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self.store.close()

    def give(self, count: int) -> None:
        """Stable rows, and the boundary past their bucket."""
        with self._lock:
            self.log.append_later(self._data(count, False))
            self.next_id += count
            self.through = (self.next_id - 1) * 10_000 // BUCKET_US * BUCKET_US + BUCKET_US
            anchor = Anchor(self.through, self.through, (("f/0", self.next_id),), ())
            self.log.append_later(
                Boundary(self.origin, self.epoch, self.through, False, now_us(), now_us(), self.state, anchor)
            )

    def guess(self, count: int) -> None:
        """Tentative rows, and the tentative boundary past them."""
        with self._lock:
            self.state = State.UP_FAILURE
            self.log.append_later(self._data(count, True))
            through = (self.next_id + count - 1) * 10_000 // BUCKET_US * BUCKET_US + BUCKET_US
            self.log.append_later(
                Boundary(self.origin, self.epoch, through, True, now_us(), now_us(), self.state, None, ("s",), "main.r0.0#1")
            )

    def heal(self, count: int) -> None:
        """Undo, so many stable rows instead, and the end of the correction."""
        with self._lock:
            self.epoch += 1
            self.state = State.STABILIZATION
            self.log.append_later(Undo(self.origin, self.epoch, self.next_id - 1, "main.r0.0#1"))
        self.give(count)
        with self._lock:
            self.state = State.STABLE
            self.log.append_later(RecDone(self.origin, self.epoch, "main.r0.0#1"))

    def _data(self, count: int, tentative: bool) -> Data:
        ids = range(self.next_id, self.next_id + count)
        values = [dict.fromkeys(self.schema.names, -n if tentative else n) for n in ids]
        rows = [{**row, "time": n * 10_000, "name": f"k{n % 3}"} for n, row in zip(ids, values, strict=True)]
        batch = pa.RecordBatch.from_pylist(rows, schema=self.schema.arrow)
        why = (("s",), "main.r0.0#1") if tentative else ()
        now = now_us()
        last = ids[-1] * 10_000
        return Data(self.origin, self.epoch, self.next_id, batch, tentative, ((last + 1, now),), last, *why)


@dataclass
class Deployment:
    """A query whose egress is a process, and whose replica is played."""

    server: KafkaServer
    name: str
    replica: Replica
    running: list[AnyProcess] = field(default_factory=list)

    def begin(self, failpoint: str = "", **more: str) -> AnyProcess:
        environment = {
            **os.environ,
            "BOREAL_SITES__A__BOOTSTRAP": self.server.bootstrap,
            "BOREAL_FAILPOINT": failpoint,
            **more,
        }
        command = (sys.executable, "-m", "services.egress", self.name, "a")
        self.running.append(start_process(command, environment, self.server.directory / f"egress.{self.name}.log"))
        return self.running[-1]

    @contextmanager
    def egress(self, failpoint: str = "", **more: str) -> Iterator[AnyProcess]:
        process = self.begin(failpoint, **more)
        yield process
        wait_until(lambda: self.status(process).get("ready"), "it says that it is ready")
        process.terminate()
        assert process.wait(60) == EXIT_STOPPED

    def status(self, process: AnyProcess) -> dict[str, Any]:
        """What a life of the egress has last said of itself."""
        said = [status for status in values_of(cluster_of(self.server), STATUS) if status["pid"] == process.pid]
        return said[-1] if said else {}

    def out(self) -> list[dict[str, Any]]:
        return values_of(cluster_of(self.server), f"{self.name}.out")

    def stable_ids(self) -> list[int]:
        return stable_of(cluster_of(self.server), f"{self.name}.stable")[0]

    def await_rows(self, count: int) -> None:
        wait_until(lambda: len(self.stable_ids()) >= count, f"{count} rows on q.stable")

    def await_record(self, kind: str, after: int = 0) -> None:
        wait_until(lambda: any(r["type"] == kind for r in self.out()[after:]), f"a record of type {kind} on q.out")

    def check(self, count: int) -> None:
        """All rows are on q.stable once and in order, and q.out replays to them."""
        self.await_rows(count)
        wait_until(lambda: len(replayed(self.out())) == count, "nothing tentative is left")
        ids, lines = stable_of(cluster_of(self.server), f"{self.name}.stable")
        assert ids == list(range(count))
        assert lines == stable_by_confluent(self.server, f"{self.name}.stable")
        assert replayed(self.out()) == [json.dumps(json.loads(line)) for line in lines]
        assert [json.loads(line)["n"] for line in lines] == list(range(count))
        shown = {f"k{n % 3}": n for n in range(count)}
        wait_until(lambda: table_of(cluster_of(self.server), f"{self.name}.latest") == shown, "q.latest shows the newest rows")


@contextmanager
def deploy(server: KafkaServer, name: str) -> Iterator[Deployment]:
    cluster = cluster_of(server)
    ensure(cluster, system_topics())
    spec = load_query(spec_of(name))
    ensure(cluster, query_topics(Layout(plan(spec), ("a",)))["a"])
    QueryRegistry(cluster).put(QueryRecord(name, spec.dump(), 1))
    deployment = Deployment(server, name, Replica(server, Layout(plan(spec), ("a",))))
    try:
        yield deployment
    finally:
        deployment.replica.close()
        for process in deployment.running:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


@pytest.fixture
def deployed(kafka: KafkaServer, fresh_name: str) -> Iterator[Deployment]:
    with deploy(kafka, fresh_name) as deployment:
        yield deployment


def test_the_process_gives_what_the_replica_gives(deployed: Deployment) -> None:
    with deployed.egress() as process:
        deployed.replica.give(10)
        deployed.await_rows(10)
        deployed.replica.guess(20)
        deployed.await_record("tentative")
        wait_until(lambda: deployed.status(process).get("tentative", {}).get("outstanding"), "it says what is tentative")
        assert deployed.status(process)["tentative"]["cause"] == "main.r0.0#1"
        deployed.replica.heal(20)
        deployed.check(30)
        deployed.await_record("rec_done")
        wait_until(lambda: deployed.status(process)["counts"]["stable"] == 30, "it says what it has given")
    status = deployed.status(process)
    assert status["process"] == f"egress.{deployed.name}.a" and status["query"] == deployed.name and status["site"] == "a"
    assert status["tentative"] == {"outstanding": 0, "since_ms": None, "cause": None}
    assert status["counts"]["undone"] == status["counts"]["tentative"] > 0
    assert status["delay_ms"]["p50"] is not None and status["lost_rows"] == 0
    tentative = next(record for record in deployed.out() if record["type"] == "tentative")
    assert (tentative["missing_inputs"], tentative["cause"]) == (["s"], "main.r0.0#1")


FAILPOINTS = sorted(name for name in failpoints.NAMES if name.startswith("egress.") and "takeover" not in name)
"""Those that an egress passes also if its query has one version."""


@pytest.mark.parametrize("name", every(4, FAILPOINTS))
@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_killed_between_two_effects(deployed: Deployment, name: str, times: int) -> None:
    process = deployed.begin(f"{name}:{times}")

    def is_dead() -> bool:
        deployed.replica.give(10)
        time.sleep(0.1)
        return process.poll() is not None

    wait_until(is_dead, "the process dies")
    assert process.poll() == -signal.SIGKILL
    with deployed.egress():
        deployed.check(deployed.replica.next_id)


def test_its_corrections_are_told_to_a_receiver_of_spans(deployed: Deployment) -> None:
    with receiving() as receiver:
        with deployed.egress(BOREAL_TRACES=receiver.address, OTEL_EXPORTER_OTLP_COMPRESSION="none"):
            deployed.replica.give(10)
            deployed.replica.guess(20)
            deployed.await_record("tentative")
            deployed.replica.heal(20)
            deployed.check(30)
            wait_until(lambda: len(receiver.spans()) >= 3, "the spans of the correction")
        [whole] = [span for span in receiver.spans() if span.name == "boreal.reconciliation"]
        facts = {each.key: each.value.string_value for each in whole.attributes}
        assert (facts["boreal.query"], facts["boreal.fragment"]) == (deployed.name, EGRESS)


def test_killed_while_tentative(deployed: Deployment) -> None:
    process = deployed.begin()
    deployed.replica.give(10)
    deployed.await_rows(10)
    deployed.replica.guess(20)
    deployed.await_record("tentative")
    process.kill()
    process.wait()
    before = deployed.out()
    with deployed.egress():
        deployed.await_record("undo")
        undo = deployed.out()[len(before)]
        assert (undo["type"], undo["after_seq"], undo["epoch"]) == ("undo", before[-1]["stable_seq"], before[-1]["epoch"] + 1)
        deployed.await_record("tentative", len(before))
        deployed.replica.heal(20)
        deployed.check(30)


def test_a_thawed_egress_is_fenced(deployed: Deployment) -> None:
    zombie = deployed.begin()
    deployed.replica.give(10)
    deployed.await_rows(10)
    zombie.send_signal(signal.SIGSTOP)
    younger = deployed.begin()
    deployed.replica.give(10)
    deployed.await_rows(20)
    zombie.send_signal(signal.SIGCONT)
    deployed.replica.give(10)
    assert zombie.wait(120) == EXIT_FENCED
    # The younger may find the zombie's record on q.out: then a third life follows, as the supervisor would let it.
    deployed.replica.give(10)
    wait_until(lambda: younger.poll() is not None or len(deployed.stable_ids()) == 40, "the younger goes on, or ends")
    if younger.poll() is not None:
        with deployed.egress():
            deployed.await_rows(40)
    assert deployed.stable_ids() == list(range(40))


def test_an_idle_egress_finds_what_a_zombie_wrote_to_q_latest(deployed: Deployment) -> None:
    cluster, topic = cluster_of(deployed.server), f"{deployed.name}.latest"
    process = deployed.begin()
    deployed.replica.give(10)
    deployed.check(10)
    old = records_of(cluster, topic)
    deployed.replica.give(10)
    deployed.check(20)
    write_again(cluster, topic, old)
    assert process.wait(60) == EXIT_FENCED
    with deployed.egress():
        deployed.check(20)


def test_a_broker_that_dies_costs_no_row(own_kafka: KafkaServer, fresh_name: str) -> None:
    with deploy(own_kafka, fresh_name) as deployed:
        process = deployed.begin()
        deployed.replica.give(10)
        deployed.await_rows(10)
        deployed.replica.give(10)
        own_kafka.kill()
        deployed.replica.give(10)
        own_kafka.start()
        deployed.await_rows(30)
        if process.poll() is not None:
            # The coordinator may have ended a transaction that it had lost sight of: then the supervisor begins anew.
            assert process.poll() == EXIT_FENCED
            process = deployed.begin()
        deployed.replica.give(10)
        deployed.check(40)
        assert process.poll() is None
