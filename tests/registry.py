"""A real schema registry for tests: Apicurio's, which speaks as Confluent's does, from Maven Central, once a machine."""

from __future__ import annotations

import fcntl
import shutil
import tarfile
import urllib.request
from pathlib import Path

from services.hosting.fetch import artifacts, java
from services.stack.ports import HOST
from services.stack.servers import LOOK_SECONDS, Server

PINS = Path(__file__).with_name("ivy")


def program() -> Path:
    """The directory of the server's jars, fetched if it does not exist (142 MB)."""
    fetched = artifacts("registry", PINS)
    found = fetched / "program"
    with (fetched / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.is_dir():
            partial = fetched / "partial"
            shutil.rmtree(partial, ignore_errors=True)
            [archive] = fetched.glob("*.tar.gz")
            with tarfile.open(archive) as content:
                content.extractall(partial, filter="data")
            partial.rename(found)
    return found


class RegistryServer(Server):
    """One registry that keeps its schemas across a kill."""

    name = "the schema registry"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, [0])

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/apis/ccompat/v7"

    def prepare(self) -> None:
        self.data.mkdir(exist_ok=True)

    @property
    def command(self) -> list[str]:
        [jar] = program().glob("*-runner.jar")
        # By default the database writes half a second later, and a kill would lose schemas whose ids are in records by then.
        database = f"jdbc:h2:file:{self.data / 'schemas'};WRITE_DELAY=0"
        settings = {
            "quarkus.http.host": HOST,
            "quarkus.http.port": self.port,
            "quarkus.datasource.jdbc.url": database,
            "quarkus.datasource.jdbc.initial-size": 1,
            "quarkus.datasource.jdbc.min-size": 1,
        }
        limits = ["-Xmx320m", "-XX:TieredStopAtLevel=1"]
        return [str(java()), *limits, *(f"-D{name}={value}" for name, value in settings.items()), "-jar", str(jar)]

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=LOOK_SECONDS) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
