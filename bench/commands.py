"""A local stack that a benchmark uses as its users do: by its commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from services.kafka.clusters import Cluster
from services.kafka.settings import KafkaSettings, ServiceSettings
from services.kafka.topics import TopicSpec, create


class Commands:
    """Runs boreal's commands on the stack of a directory."""

    def __init__(self, data: Path) -> None:
        self.data = data

    def run(self, *arguments: str) -> str:
        """What a command prints with --json. CalledProcessError if it fails."""
        command = [sys.executable, "-P", "-m", "boreal", *arguments, "--json", "--data", str(self.data)]
        path = os.pathsep.join(entry for entry in sys.path if entry)
        return subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, check=True
        ).stdout


def make_topics(bootstrap: str, names: Sequence[str]) -> None:
    """Make the topics `in.NAME`, with one partition each, as boreal makes topics that are missing."""
    cluster = Cluster("a", ServiceSettings(sites={"a": KafkaSettings(bootstrap=bootstrap)}), "bench")
    create(cluster, [TopicSpec(f"in.{name}", 1, is_users=True) for name in names])


Stack = TypeVar("Stack", bound=Commands)


@contextmanager
def stack_up(stack: Stack, *options: str) -> Iterator[tuple[Stack, str]]:
    """The stack while it is up, and the address of its Kafka. options: of `boreal up`."""
    try:
        status = json.loads(stack.run("up", *options))
        yield stack, status["kafka"]["a"]
    finally:
        stack.run("down")
