"""A job on a standalone cluster, as docker-compose.yml has one: a master and a worker, whose executors run the hosts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pyspark
import pytest

from boreal.query.spec import Mode
from services.hosting.fetch import java
from services.kafka.settings import KafkaSettings, RedisSettings, ServiceSettings
from services.stack.servers import HOST, KafkaServer, RedisServer, free_port
from spark_jobs.session import java_home
from tests.spark.jobs import ROOT, Script, SparkJob, environment_of, query_named

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.xdist_group("servers"), pytest.mark.soak]

PROGRAM = Path(pyspark.__file__).parent / "bin" / "spark-class"
SHARDS = 2
LOCAL = {"spark.driver.host": HOST, "spark.driver.bindAddress": HOST, "spark.executor.memory": "512m"}


@contextmanager
def running(directory: Path, name: str, *arguments: str) -> Iterator[psutil.Process]:
    """One of the cluster's programs; ended at the end, with all that it has started."""
    environment = {
        **os.environ, "JAVA_HOME": str(java_home(java(), directory)), "SPARK_LOCAL_IP": HOST, "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    with (directory / f"{name}.log").open("ab") as log:
        process = psutil.Popen(
            [PROGRAM, f"org.apache.spark.deploy.{name.lower()}.{name}", "--host", HOST, "--webui-port", "0", *arguments],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=directory,
        )  # fmt: skip
    try:
        yield process
    finally:
        family = [process, *process.children(recursive=True)]
        for member in family:
            if member.is_running():
                member.kill()
        psutil.wait_procs(family, timeout=20)


def test_a_job_runs_on_a_cluster_and_survives_its_executors(kafka: KafkaServer, tmp_path: Path, fresh_name: str) -> None:
    port = free_port()
    master = f"spark://{HOST}:{port}"
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer(tmp_path / "redis"))
        settings = ServiceSettings(sites={"a": KafkaSettings(bootstrap=kafka.bootstrap)}, redis=RedisSettings(url=redis.url))
        stack.enter_context(running(tmp_path, "Master", "--port", str(port)))
        more = ("--cores", "8", "--memory", "8g", "--work-dir", str(tmp_path / "work"))
        worker = stack.enter_context(running(tmp_path, "Worker", *more, master))
        environment = environment_of(settings, BOREAL_SPARK__MASTER=master, BOREAL_SPARK__CONF=LOCAL)
        job = stack.enter_context(SparkJob(settings, query_named(fresh_name, SHARDS), tmp_path, environment))
        job.spawn()
        job.wait_ready()
        scripts = [Script(fragment, seed) for seed, fragment in enumerate(job.fragments)]
        for mode in Mode:
            for script in scripts:
                script.begin(mode)
                script.go_on(20)
            job.give(scripts)
            job.check(scripts)
        executors = [child for child in worker.children() if child.name() == "java"]
        assert len(executors) == SHARDS, "no more cores than there are hosts"
        executors[0].kill()
        for script in scripts:
            script.go_on(20)
        job.give(scripts)
        job.check(scripts)
        assert not job.ended
