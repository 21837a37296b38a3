"""Java's archive of Spark's classes: a JVM that starts with it is ready sooner (docs/figures.md, "Spark").

Java 17 makes none by itself. A job that is told to does it once it is warm, of a JVM that was told to remember which classes it
loads; every job uses what is there. A JVM checks that the same Java has made it, of the same jars in the same order, and does
without where it does not fit: an archive may be stale, cut short or gone, and nothing is lost but its gain.
"""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkContext

_QUIET = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
_REMEMBER = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:+RecordDynamicDumpInfo "
    "--add-opens=java.management/com.sun.jmx.mbeanserver=ALL-UNNAMED"
)
"""The JVM notes its classes; and Python, which py4j lends Java's reflection, may ask it for the archive."""

_logger = logging.getLogger("boreal.spark.archive")


class Archive:
    """The one of a Java and its jars, in a directory that may hold others'."""

    def __init__(self, directory: Path, java: Path, jars: tuple[Path, ...]) -> None:
        """java: the program; jars: the directories of all jars that the JVM has."""
        made_of = (java.resolve(), *(folder.resolve() for folder in jars))
        name = hashlib.sha256("\n".join(str(path) for path in made_of).encode()).hexdigest()[:12]
        self.path = directory / f"spark-{name}.jsa"
        # The time of their installation: a package's files are as old as the package.
        self._newest = max(path.stat().st_ctime for path in made_of)

    @property
    def is_there(self) -> bool:
        """Whether it has been made, after what it is made of."""
        try:
            return self.path.stat().st_mtime > self._newest
        except FileNotFoundError:
            return False

    @property
    def use(self) -> str:
        """Options of a JVM that is to use it."""
        return f'"-XX:SharedArchiveFile={self.path}" {_QUIET}'

    @property
    def remember(self) -> str:
        """Options of a JVM that is to make it."""
        return f"{_REMEMBER} {_QUIET}"


def make_archive(context: SparkContext, path: Path) -> None:
    """Of the classes that this context's JVM has loaded, which does nothing else meanwhile: some seconds. Two jobs that make it
    at once make the same. Where it cannot be made, the log says why, and nothing is lost."""
    partial = path.with_suffix(f".{os.getpid()}")
    jvm, gateway = context._jvm, context._gateway
    assert jvm is not None and gateway is not None
    arguments = gateway.new_array(jvm.String, 2)
    arguments[0], arguments[1] = "dynamic_dump", str(partial)
    given, kinds = gateway.new_array(jvm.Object, 1), gateway.new_array(jvm.String, 1)
    given[0], kinds[0] = arguments, "[Ljava.lang.String;"
    try:
        beans = jvm.java.lang.management.ManagementFactory.getPlatformMBeanServer()
        beans.invoke(jvm.javax.management.ObjectName("com.sun.management:type=DiagnosticCommand"), "vmCds", given, kinds)
        partial.rename(path)
    except (Py4JError, OSError) as error:
        _logger.info("no archive of Spark's classes was made: %s", error)
    finally:
        partial.unlink(missing_ok=True)
