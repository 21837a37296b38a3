"""`python -m services.stack.class_archive`: keeps the broker's classes on disk as the JVM holds them in memory (class data
sharing), beside its jars. A broker then starts in half the time. One that finds no such archive, or one that another Java
wrote, loads its classes from the jars.
"""

from __future__ import annotations

import signal
import subprocess
import tempfile
from pathlib import Path

from services.hosting.fetch import kafka_jars
from services.stack.servers import KafkaServer, class_archive

WRITE_SECONDS = 60.0
"""How long a broker may take to end, which is when the JVM writes the archive."""


class _Recorded(KafkaServer):
    """A broker whose JVM writes the classes that it has used to a file."""

    def __init__(self, directory: Path, archive: Path) -> None:
        super().__init__(directory)
        self._archive = archive

    @property
    def command(self) -> list[str]:
        return self.java_command(f"-XX:ArchiveClassesAtExit={self._archive}", "kafka.Kafka", str(self._properties))

    def end(self) -> None:
        self._signal(signal.SIGTERM)
        self._await_end(WRITE_SECONDS)


def write_class_archive() -> None:
    """Write the archive unless one is there that this Java takes. Java crashes on half an archive: so it appears whole."""
    archive = class_archive()
    if _fits(archive):
        return
    archive.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=kafka_jars().parent) as scratch:
        written = Path(scratch, "classes.jsa")
        broker = _Recorded(Path(scratch, "broker"), written)
        with broker:
            broker.end()
        if _fits(written):
            written.replace(archive)


def _fits(archive: Path) -> bool:
    """Whether this Java takes an archive."""
    if not archive.is_file():
        return False
    command = KafkaServer.java_command(f"-XX:SharedArchiveFile={archive}", "-Xshare:on", "-version")
    return subprocess.run(command, capture_output=True, timeout=WRITE_SECONDS).returncode == 0


if __name__ == "__main__":
    write_class_archive()
