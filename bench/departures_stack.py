"""A local stack on which the departures query runs several times under other names, on the same topics."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml
from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from bench.commands import Commands, stack_up
from bench.idle import AIRPORTS, departures


class DeparturesStack(Commands):
    """The stack."""

    def apply(self, name: str, tuning: dict[str, str], **options: Any) -> float:
        """Apply `departures(tuning, **options)` under a name; returns after how many seconds it was live."""
        path = self.data.parent / f"{name}.yaml"
        path.write_text(yaml.safe_dump(departures(tuning, name=name, **options)))
        began = time.monotonic()
        self.run("query", "apply", str(path))
        return time.monotonic() - began

    @property
    def state(self) -> dict[str, Any]:
        """What the supervisor says of its processes."""
        found: dict[str, Any] = json.loads((self.data / "run" / "state.json").read_text())
        return found


Stack = TypeVar("Stack", bound=DeparturesStack)


@contextmanager
def departures_stack(make: type[Stack], folder: Path, workers: int) -> Iterator[tuple[Stack, str]]:
    """Such a stack with its topics, while it is up, and the address of its Kafka."""
    with stack_up(make(folder / "data"), "--workers", str(workers)) as (stack, bootstrap):
        with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
            admin.create_topics([NewTopic(f"in.{name}", num_partitions=1, replication_factor=1) for name in AIRPORTS])
        yield stack, bootstrap
