"""A local stack that a benchmark uses as its users do: by its commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from services.kafka.topics import TopicSpec


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
    specs = [TopicSpec(f"in.{name}", 1, is_users=True) for name in names]
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        admin.create_topics([NewTopic(spec.name, spec.partitions, 1, topic_configs=spec.created_with) for spec in specs])


Stack = TypeVar("Stack", bound=Commands)


@contextmanager
def stack_up(stack: Stack, *options: str) -> Iterator[tuple[Stack, str]]:
    """The stack while it is up, and the address of its Kafka. options: of `boreal up`."""
    try:
        status = json.loads(stack.run("up", *options))
        yield stack, status["kafka"]["a"]
    finally:
        stack.run("down")
