"""Spark jobs on a real Spark, Kafka and Redis: what they answer is what a host beside us answers, byte for byte, whatever dies.

The tests of `job` share one job, one after the other; each leaves it running, whatever it has killed.
"""

from __future__ import annotations

import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest
from kafka import TopicPartition
from pydantic import SecretStr

from boreal.query.spec import Mode
from deployment.operator_hosts import copy_owner, facts_of_job, host_owner
from logs.checkpoints import Checkpoint
from services.hosting.fetch import spark_jars
from services.kafka.clusters import MAX_FRAME_BYTES
from services.kafka.settings import KafkaSettings, RedisSettings, ServiceSettings
from services.kafka.statuses import Statuses
from services.stack.servers import KafkaSecurity, KafkaServer, RedisServer
from services.storage.redis_checkpoints import RedisCheckpointStore, connect_redis
from spark_jobs.worker import WARM_UP
from tests.servers import make_certificates
from tests.spark.jobs import READY_S, ROOT, Script, SparkJob, environment_of, is_alive, jvm_of, query_named
from tests.thoroughness import every
from tests.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.xdist_group("servers")]

SHARDS = 4
NOT_A_REDIS = "http://127.0.0.1:1/0"


@dataclass
class Bench:
    """A running job with a Redis of its own, and what it was told so far."""

    job: SparkJob
    redis: RedisServer
    store: RedisCheckpointStore
    scripts: list[Script]

    def begin(self, mode: Mode) -> None:
        for script in self.scripts:
            script.begin(mode)

    def go_on(self, count: int, rows: int = 50) -> None:
        for script in self.scripts:
            script.go_on(count, rows)
        self.job.give(self.scripts)

    def check(self) -> None:
        self.job.check(self.scripts)


@pytest.fixture(scope="module")
def bench(kafka: KafkaServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    directory = tmp_path_factory.mktemp("spark")
    with RedisServer(directory / "redis") as redis:
        settings = ServiceSettings(sites={"a": KafkaSettings(bootstrap=kafka.bootstrap)}, redis=RedisSettings(url=redis.url))
        name = f"t{uuid.uuid4().hex[:12]}"
        store = RedisCheckpointStore(connect_redis(settings.redis), prefix=name)
        with SparkJob(settings, query_named(name, SHARDS), directory, environment_of(settings)) as job:
            job.spawn()
            job.wait_ready()
            yield Bench(job, redis, store, [Script(fragment, seed) for seed, fragment in enumerate(job.fragments)])
        store.close()


@pytest.mark.parametrize("mode", every(3, Mode))
def test_a_job_answers_as_a_host_beside_us_does(bench: Bench, mode: Mode) -> None:
    bench.begin(mode)
    bench.go_on(60)
    bench.check()


def test_a_job_tells_how_its_hosts_get_on(bench: Bench) -> None:
    job = bench.job
    with closing(Statuses(job.cluster)) as statuses:

        def shards() -> list[dict[str, Any]]:
            return facts_of_job(statuses.newest().get(f"spark.{job.query.name}.r0", {}))["shards"] or []

        bench.begin(Mode.CHECKPOINT_REDO)
        for script in bench.scripts:
            script.step(500)
            script.copy()
        job.give(bench.scripts)
        bench.check()
        given = [script.rows for script in bench.scripts]
        wait_until(lambda: [shard["rows"] for shard in shards()] == given, "they count", explain=lambda: f"{given} {shards()}")
        rebuilds = [shard["rebuilds"] for shard in shards()]
        copies = [len(script.copies[max(script.copies)]) for script in bench.scripts]
        wait_until(lambda: [shard["versions_bytes"] for shard in shards()] == copies, "they measure")
        status = statuses.newest()[f"spark.{job.query.name}.r0"]
        assert all(shard["state_bytes"] > 0 for shard in status["shards"])
        assert status["rows_per_s"] > 0
        [worker], memory = job.workers(), status["rss_bytes"]
        for name, process in (("jvm", jvm_of(job.pid)), ("driver", psutil.Process(job.pid)), ("workers", worker)):
            assert 0.5 < memory[name] / process.memory_info().rss < 2
        assert status["memory_bytes"] > memory["jvm"] / 2 + memory["driver"], "what the query takes is that of all of them"
        worker.kill()
        bench.go_on(5)
        bench.check()
        wait_until(lambda: [shard["rebuilds"] - 1 for shard in shards()] == rebuilds, "they tell of it")
        for shard in shards():
            assert shard["last_rebuild_cause"] == "new worker"
            assert shard["last_rebuild_s"] > 0 and shard["last_rebuild_orders"] > 0


@pytest.mark.soak
def test_what_no_record_of_kafka_s_holds_travels_in_parts(bench: Bench) -> None:
    """An order of more than 64 MB, whose answer is as large; the worker dies after it."""
    bench.begin(Mode.OVERLAY_REDO)
    script = bench.scripts[0]
    before = len(script.orders)
    script.many_groups(1_450_000)
    assert min(sum(map(len, script.orders[before:])), len(script.answers[-1])) > MAX_FRAME_BYTES
    bench.job.give(bench.scripts)
    bench.check()
    [worker] = bench.job.workers()
    worker.kill()
    bench.go_on(5)
    bench.check()


def test_what_is_no_order_is_passed_over(bench: Bench) -> None:
    bench.begin(Mode.OVERLAY_REDO)
    bench.go_on(5)
    for value in (b"no order at all", WARM_UP, bench.scripts[0].orders[0][:-1]):
        bench.job.put(0, value)
        bench.go_on(5)
    bench.check()
    assert bench.job.said.count("skips offset") >= 2


def test_without_redis_a_copy_waits_and_no_order_does(bench: Bench) -> None:
    script, who = bench.scripts[0], bench.job.instances[0]
    bench.begin(Mode.CHECKPOINT_REDO)
    script.step(50)
    bench.redis.stop()
    number = script.copy()
    bench.job.give(bench.scripts)
    bench.check()
    bench.redis.start()
    wait_until(lambda: number in bench.store.numbers(copy_owner(who)), "the copy is in the store")


def test_without_redis_a_lost_state_is_made_of_the_log_and_a_begin_from_a_checkpoint_waits(bench: Bench) -> None:
    script, who = bench.scripts[0], bench.job.instances[0]
    bench.begin(Mode.CHECKPOINT_REDO)
    script.step(50)
    number = script.copy()
    bench.go_on(20)
    bench.check()
    bench.store.put(Checkpoint(str(who), number, 0, 0, (), (), script.copies[number]))
    bench.redis.stop()
    for worker in bench.job.workers():
        worker.kill()
    bench.go_on(20)
    bench.check()
    script.begin(Mode.CHECKPOINT_REDO, (str(who), number))
    bench.go_on(5)
    wait_until(lambda: "cannot be read yet" in bench.job.said, "the job asks for the checkpoint")
    bench.redis.start()
    bench.check()


def test_another_life_begins_with_a_copy_that_came_to_the_store(bench: Bench) -> None:
    script, who = bench.scripts[0], bench.job.instances[0]
    bench.begin(Mode.CHECKPOINT_REDO)
    script.step(50)
    number = script.copy()
    bench.job.give(bench.scripts)
    bench.check()
    wait_until(lambda: number in bench.store.numbers(copy_owner(who)), "the copy is in the store")
    copy = bench.store.get(copy_owner(who), number)
    assert copy.state == script.copies[number]
    bench.store.put(replace(copy, instance=str(who)))
    script.begin(Mode.UNDO_REDO, (str(who), number))
    bench.go_on(20)
    bench.check()


@pytest.mark.parametrize(
    "victim",
    ["worker", *(pytest.param(v, marks=pytest.mark.soak) for v in ("JVM", "driver", "driver and its checkpoint"))],
)
def test_what_dies_in_the_midst_of_orders_loses_and_changes_nothing(bench: Bench, victim: str) -> None:
    job = bench.job
    bench.begin(Mode.OVERLAY_REDO)
    bench.go_on(10)
    bench.check()
    family = job.family()
    bench.go_on(100)
    if victim == "worker":
        [worker] = job.workers()
        worker.kill()
    else:
        (jvm_of(job.pid) if victim == "JVM" else family[0]).kill()
        bench.go_on(20)
        wait_until(lambda: job.ended, "the driver ends")
        assert job.process is not None and job.process.returncode == (1 if victim == "JVM" else -9)
        wait_until(lambda: not any(is_alive(process) for process in family), "its JVM and its workers end")
        if victim == "driver and its checkpoint":
            shutil.rmtree(job.directory / "spark")
        job.spawn()
        job.wait_ready()
    bench.go_on(20)
    bench.check()
    assert not job.ended


@pytest.mark.soak
def test_two_jobs_at_once_answer_twice_and_alike(bench: Bench, tmp_path: Path) -> None:
    job = bench.job
    environment = environment_of(job.settings)
    with SparkJob(job.settings, job.query, tmp_path, environment) as other:
        other.spawn()
        bench.begin(Mode.OVERLAY_REDO)
        while not other.is_ready:
            bench.go_on(1)
            bench.check()
        bench.go_on(20)
        for one in (job, other):
            one.check(bench.scripts)
        wait_until(lambda: all(heard.repeated for heard in other.heard), "both have answered")


@pytest.mark.soak
def test_snapshots_let_the_orders_before_them_be_deleted(bench: Bench) -> None:
    """Orders of 8,192 rows: a snapshot after 32 MB of them."""
    job = bench.job
    bench.begin(Mode.CHECKPOINT_REDO)
    script, owner = bench.scripts[0], host_owner(job.instances[0])
    before = bench.store.numbers(owner)
    while bench.store.numbers(owner) == before:
        for _ in range(20):
            script.step(4_096)
        job.give(bench.scripts)
        bench.check()
    offset = bench.store.numbers(owner)[-1]
    with job.cluster.make_admin() as admin:
        admin.delete_records({TopicPartition(job.orders, 0): offset})
    for worker in job.workers():
        worker.kill()
    bench.go_on(20)
    bench.check()


@pytest.mark.soak
def test_spark_submit_takes_it_and_kafka_may_demand_tls_and_a_password(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "certificates")
    security = KafkaSecurity("boreal", "tell-nobody-7f3a", certificates.certificate, certificates.key, certificates.authority)
    with KafkaServer(tmp_path / "kafka", security=security) as kafka, RedisServer(tmp_path / "redis") as redis:
        site = KafkaSettings(
            bootstrap=kafka.bootstrap, security_protocol="SASL_SSL", username="boreal",
            password=SecretStr(security.password), ca_file=certificates.authority,
        )
        settings = ServiceSettings(sites={"a": site}, redis=RedisSettings(url=redis.url))
        environment = environment_of(settings) | {
            "BOREAL_SITES__A__SECURITY_PROTOCOL": "SASL_SSL",
            "BOREAL_SITES__A__USERNAME": "boreal",
            "BOREAL_SITES__A__PASSWORD": security.password,
            "BOREAL_SITES__A__CA_FILE": str(certificates.authority),
            "PYSPARK_PYTHON": sys.executable,
        }
        with SparkJob(settings, query_named("secured", 1), tmp_path, environment) as job:
            jars = ",".join(str(jar) for jar in spark_jars().glob("*.jar"))
            program = Path(pyspark.__file__).parent / "bin" / "spark-submit"
            job.spawn(program, "--jars", jars, "--conf", "spark.log.level=INFO", ROOT / "spark_jobs" / "job.py")
            job.wait_ready()
            [script] = scripts = [Script(job.fragments[0], 7)]
            for mode in Mode:
                script.begin(mode)
                script.go_on(30)
                job.give(scripts)
                job.check(scripts)
            assert security.password not in job.said


@pytest.mark.soak
def test_a_job_that_fails_says_why_in_python_and_ends(kafka: KafkaServer, tmp_path: Path, fresh_name: str) -> None:
    settings = ServiceSettings(sites={"a": KafkaSettings(bootstrap=kafka.bootstrap)}, redis=RedisSettings(url=NOT_A_REDIS))
    with SparkJob(settings, query_named(fresh_name, 1), tmp_path, environment_of(settings)) as job:
        job.spawn()
        wait_until(lambda: job.ended, "the job ends", READY_S)
        assert job.process is not None and job.process.returncode == 1
        assert "Redis URL must specify one of the following schemes" in job.said
        assert "Traceback (most recent call last)" in job.said
