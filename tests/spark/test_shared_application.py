"""An application that two queries share, on a real Spark, Kafka and Redis: what each is answered is what hosts beside us
answer, byte for byte, and what one query does is nothing to the other.

The tests share one application, one after the other; each but the last leaves it running."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from boreal.query.spec import Mode
from deployment.query_record import QueryRecord
from logs.checkpoints import Checkpoint
from services.hosting.process import EXIT_FAILED, EXIT_STOPPED
from services.kafka.settings import KafkaSettings, RedisSettings, ServiceSettings
from services.stack.servers import KafkaServer, RedisServer
from services.storage.redis_checkpoints import RedisCheckpointStore, connect_redis
from tests.spark.jobs import (
    READY_S,
    ROOT,
    Script,
    SparkJob,
    environment_of,
    family_of,
    jvm_of,
    query_named,
    workers_of,
)
from tests.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.xdist_group("servers")]

PROGRAM = "import spark_jobs.application as application; application.UNUSED_S = 3.0; application.main()"


class Supervisor:
    """Has one application, and asks it to run roles."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.log = directory / "application.log"
        self.ended: list[tuple[str, int]] = []
        self._environment = {**os.environ, **environment, "BOREAL_DATA": str(directory), "PYTHONPATH": str(ROOT)}

    def begin(self) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs, self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, "spark.r0"],
                stdin=theirs.fileno(), stdout=log, stderr=log, env=self._environment, start_new_session=True,
            )  # fmt: skip
        threading.Thread(target=self._listen, args=(self._channel,), daemon=True).start()

    @property
    def said(self) -> str:
        return self.log.read_text()

    def start(self, job: SparkJob) -> None:
        """Ask for the role of a query, and wait until it is ready."""
        name = role(job)
        before = self.said.count(f"{name} is ready")
        self.ask(job)
        wait_until(lambda: self.said.count(f"{name} is ready") > before, f"{name} is ready", READY_S, lambda: self.said[-3000:])

    def ask(self, job: SparkJob) -> None:
        """Ask for the role of a query."""
        record = QueryRecord(job.query.name, job.query.dump(), 1).fields()
        self._tell({"start": role(job), "kind": "spark", "record": record, "part": "r0", "links": {}})

    def stop(self, job: SparkJob) -> None:
        self._tell({"stop": role(job)})
        self.wait_end(job, EXIT_STOPPED)

    def wait_end(self, job: SparkJob, code: int) -> None:
        wait_until(lambda: (role(job), code) in self.ended, f"{role(job)} has ended", explain=lambda: self.said[-3000:])
        self.ended.clear()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def _tell(self, message: dict[str, object]) -> None:
        self._channel.sendall(json.dumps(message).encode() + b"\n")

    def _listen(self, channel: socket.socket) -> None:
        with channel.makefile("rb") as lines:
            for line in lines:
                said = json.loads(line)
                if "ended" in said:
                    self.ended.append((said["ended"], said["code"]))


def role(job: SparkJob) -> str:
    return f"spark.{job.query.name}.r0"


@dataclass
class Bench:
    """A running application with a Redis of its own, two queries, and what each was told so far."""

    supervisor: Supervisor
    jobs: list[SparkJob]
    redis: RedisServer
    store: RedisCheckpointStore  # of the first query
    scripts: list[list[Script]] = field(default_factory=list)

    def begin(self, mode: Mode) -> None:
        for script in (script for scripts in self.scripts for script in scripts):
            script.begin(mode)

    def go_on(self, count: int = 10) -> None:
        for which in range(len(self.jobs)):
            self.go_on_with(which, count)

    def go_on_with(self, which: int, count: int = 10) -> None:
        for script in self.scripts[which]:
            script.go_on(count)
        self.jobs[which].give(self.scripts[which])

    def check(self) -> None:
        for job, scripts in zip(self.jobs, self.scripts, strict=True):
            job.check(scripts)


@pytest.fixture(scope="module")
def bench(kafka: KafkaServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    directory = tmp_path_factory.mktemp("spark")
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer(directory / "redis"))
        settings = ServiceSettings(sites={"a": KafkaSettings(bootstrap=kafka.bootstrap)}, redis=RedisSettings(url=redis.url))
        names = [f"t{uuid.uuid4().hex[:12]}" for _ in range(2)]
        jobs = [stack.enter_context(SparkJob(settings, query_named(name, 2), directory, {})) for name in names]
        supervisor = Supervisor(directory, environment_of(settings))
        supervisor.begin()
        stack.callback(supervisor.end)
        for job in jobs:
            supervisor.start(job)
        store = RedisCheckpointStore(connect_redis(settings.redis), prefix=names[0])
        scripts = [[Script(fragment, seed) for seed, fragment in enumerate(job.fragments)] for job in jobs]
        yield Bench(supervisor, jobs, redis, store, scripts)
        store.close()


@pytest.mark.parametrize(
    "mode", [Mode.OVERLAY_REDO, *(pytest.param(mode, marks=pytest.mark.soak) for mode in Mode if mode is not Mode.OVERLAY_REDO)]
)
def test_each_is_answered_as_by_hosts_beside_us_and_they_share_a_jvm_and_a_worker(bench: Bench, mode: Mode) -> None:
    bench.begin(mode)
    bench.go_on(30)
    bench.check()
    assert len(workers_of(bench.supervisor.process.pid)) == 1
    assert [process.name() for process in family_of(bench.supervisor.process.pid)].count("java") == 1


def test_a_host_that_fails_ends_its_role_alone_and_its_orders_are_answered_once_the_role_begins_again(bench: Bench) -> None:
    job, [script, _], who = bench.jobs[0], bench.scripts[0], str(bench.jobs[0].instances[0])
    bench.begin(Mode.CHECKPOINT_REDO)
    number = script.copy()
    bench.go_on()
    bench.check()
    bench.store.put(Checkpoint(who, number, 0, 0, (), (), script.copies[number]))
    bench.redis.stop()
    script.begin(Mode.CHECKPOINT_REDO, (who, number))
    job.give(bench.scripts[0])
    bench.supervisor.wait_end(job, EXIT_FAILED)
    bench.go_on()
    bench.jobs[1].check(bench.scripts[1])
    assert len(job.heard[0].answers) < len(script.answers)
    # A role that begins again while the reason stands ends again, and nothing that was missed is forgotten.
    bench.supervisor.ask(job)
    bench.supervisor.wait_end(job, EXIT_FAILED)
    bench.redis.start()
    bench.supervisor.start(job)
    bench.check()


@pytest.mark.soak
def test_a_worker_that_is_killed_in_the_midst_of_orders_costs_no_answer(bench: Bench) -> None:
    bench.begin(Mode.OVERLAY_REDO)
    bench.go_on()
    bench.check()
    for number in range(5):
        bench.go_on(3)
        if number == 2:
            [worker] = workers_of(bench.supervisor.process.pid)
            worker.kill()
    bench.check()


@pytest.mark.soak
def test_a_jvm_that_is_killed_ends_all_roles_and_the_next_application_goes_on(bench: Bench) -> None:
    bench.begin(Mode.UNDO_REDO)
    bench.go_on()
    jvm_of(bench.supervisor.process.pid).kill()
    assert bench.supervisor.process.wait(30) == EXIT_FAILED
    bench.go_on()
    bench.supervisor.begin()
    for job in bench.jobs:
        bench.supervisor.start(job)
    bench.check()


def test_a_query_that_is_deleted_and_made_again_under_its_name_is_nothing_to_the_others(bench: Bench, tmp_path: Path) -> None:
    bench.begin(Mode.CHECKPOINT_REDO)
    bench.go_on()
    other = bench.jobs[0]
    name = f"t{uuid.uuid4().hex[:12]}"
    for seed in range(2):
        with SparkJob(other.settings, query_named(name, 2), tmp_path, {}) as job:
            bench.supervisor.start(job)
            scripts = [Script(fragment, seed) for fragment in job.fragments]
            for script in scripts:
                script.begin(Mode.OVERLAY_REDO)
                script.go_on(20)
            job.give(scripts)
            job.check(scripts)
            bench.supervisor.stop(job)
            with closing(job.cluster.make_admin()) as admin:
                admin.delete_topics([job.orders, job.answers])
                wait_until(lambda: not {job.orders, job.answers} & {*admin.list_topics()}, "its topics are deleted")
        bench.go_on()
        bench.check()
    assert bench.supervisor.process.poll() is None


@pytest.mark.soak
def test_roles_are_stopped_and_begin_again_and_an_application_without_any_ends(bench: Bench) -> None:
    bench.begin(Mode.CHECKPOINT_REDO)
    bench.go_on()
    bench.check()
    first, second = bench.jobs
    bench.supervisor.stop(first)
    bench.go_on_with(1)
    second.check(bench.scripts[1])
    bench.go_on_with(0)
    bench.supervisor.start(first)
    bench.check()
    family = family_of(bench.supervisor.process.pid)
    for job in bench.jobs:
        bench.supervisor.stop(job)
    assert bench.supervisor.process.wait(30) == EXIT_STOPPED
    wait_until(lambda: not any(psutil.pid_exists(process.pid) for process in family), "its JVM and its worker have ended")
