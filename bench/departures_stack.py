"""A local stack on which the departures query runs several times under other names, on the same topics."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml

from bench.commands import Commands, make_topics, stack_up
from bench.idle import AIRPORTS, departures


class DeparturesStack(Commands):
    """The stack."""

    def apply(self, name: str, tuning: dict[str, str], **options: Any) -> float:
        """Apply `departures(tuning, **options)` under a name; returns after how many seconds it was live."""
        return self.apply_query(departures(tuning, name=name, **options))

    def apply_query(self, query: dict[str, Any]) -> float:
        """Apply any query; returns after how many seconds it was live."""
        path = self.data.parent / f"{query['name']}.yaml"
        path.write_text(yaml.safe_dump(query))
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
        make_topics(bootstrap, AIRPORTS)
        yield stack, bootstrap
