"""Breaking a deployment while rows flow, and holding I1-I6 afterwards: what the scenarios on real processes share."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import confluent_kafka

from bench.deployment import PATIENCE_S, Deployment, KafkaFeeder, wait_until
from sunion.port import EARLY

X_S = 3.0
WINDOW_US = 1_000_000
STALL_S = 0.3
QUERY: dict[str, Any] = {
    "name": "faults",
    "streams": {
        name: {
            "topic": f"in.{name}",
            "time": "at",
            "time_unit": "us",
            "schema": {"key": "int", "value": "int"},
        }
        for name in ("left", "right")
    },
    "operators": {
        "all": {"union": ["left", "right"]},
        "per_key": {
            "aggregate": "all",
            "window": {"tumbling": "1s"},
            "by": ["key"],
            "compute": {"rows": "count(*)", "total": "sum(value)"},
        },
    },
    "output": "per_key",
    "delay_threshold": f"{X_S}s",
    "replicas": 2,
    "engine": "native",
}
"""Left and right, counted per key and second."""


class Ear:
    """Hears the rows that are fed, as they arrive in their topics; no process of the query is in between. As a context.

    worst_silence_s: the longest that a topic gave nothing since this was last set to 0. Rows are fed without a pause, so
    for so long the machine, or who shares it, has kept everybody from their work. is_quiet: none are fed at present.
    """

    def __init__(self, deployment: Deployment) -> None:
        self.worst_silence_s = 0.0
        self.is_quiet = False
        self._topics: dict[str, list[str]] = {}
        for name, stream in deployment.spec.streams.items():
            if stream.topic:
                site = deployment.kafka[deployment.layout.site_of_stream(name)]
                self._topics.setdefault(site.bootstrap, []).append(stream.topic)
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(site,), daemon=True) for site in self._topics]

    def __enter__(self) -> Ear:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self, bootstrap: str) -> None:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "ear", "fetch.wait.max.ms": 20, "log_level": 0}
        )
        end = confluent_kafka.OFFSET_END
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, end) for topic in self._topics[bootstrap]])
        heard: dict[str, float] = {}
        while not self._stopping.is_set():
            records = consumer.consume(1000, timeout=0.02)
            now = time.monotonic()
            if self.is_quiet:
                heard.clear()
            self.worst_silence_s = max([self.worst_silence_s, *(now - at for at in heard.values())])
            heard |= {str(record.topic()): now for record in records if not record.error()}
        consumer.close()


@dataclass
class Bench:
    """A deployment with rows flowing, and how far it has been checked."""

    deployment: Deployment
    feeder: KafkaFeeder
    ear: Ear
    ready_s: float = PATIENCE_S

    @property
    def x_ms(self) -> float:
        return self.deployment.spec.delay_threshold / 1_000

    @property
    def has_disorder(self) -> bool:
        return any(stream.disorder for stream in self.deployment.spec.streams.values())

    def mark(self) -> int:
        self.ear.worst_silence_s = 0.0
        return len(self.deployment.changes())

    @property
    def may_be_timed(self) -> bool:
        """Whether deadlines can be asked for: not where the machine has stopped everybody for long since the mark."""
        return self.ear.worst_silence_s < STALL_S

    def check(self, since: int, may_be_late: bool = False) -> dict[str, Any]:
        """I1-I6 once all has healed: what clients hold is what the rows come to; figures since a mark."""
        deployment = self.deployment
        deployment.wait_ready(self.ready_s)
        until = (time.time_ns() // 1000) // WINDOW_US * WINDOW_US
        settled_s = wait_until(lambda: self._reaches(until), "stable output has caught up", deployment.explain)
        stable = deployment.stable()
        given = Counter(_window(row) for row in stable)
        expected = self.feeder.windows(until, WINDOW_US)
        so_far = Counter({window: count for window, count in given.items() if window[0] + WINDOW_US <= until})
        assert so_far == expected, f"missing {list(expected - so_far)[:5]}, invented {list(so_far - expected)[:5]}"
        # Read after q.stable, since every row is in q.out first.
        changes = deployment.changes()
        held = [row for row in replay(changes) if row["_kind"] == "stable"]
        assert held[: len(stable)] == [{**row, "_kind": "stable"} for row in stable]
        figures = figures_of(changes[since:], changes[:since], self.has_disorder)
        if not may_be_late and self.may_be_timed:
            # For as long as the machine kept the ear from its work, it may have kept a process of the query from its own.
            bound_ms = self.x_ms + 1_000 * self.ear.worst_silence_s
            assert figures["delay_new_ms_max"] is None or figures["delay_new_ms_max"] <= bound_ms, figures
        return {**figures, "settled_s": round(settled_s, 1)}

    def _reaches(self, until: int) -> bool:
        time.sleep(0.3)  # each look reads the whole topic
        rows = self.deployment.stable()
        return bool(rows) and max(_window(row)[0] for row in rows) >= until

    @contextmanager
    def quiet(self, *streams: str) -> Iterator[None]:
        """No rows come meanwhile: in these streams, or in all."""
        before, self.feeder.quiet = self.feeder.quiet, streams or tuple(self.deployment.spec.streams)
        self.ear.is_quiet = True
        try:
            yield
        finally:
            self.feeder.quiet = before
            self.ear.is_quiet = bool(before)

    def breathe(self, seconds: float) -> None:
        """Let rows flow: what a fault does shows only over time."""
        time.sleep(seconds)


def _window(row: dict[str, Any]) -> tuple[int, int, int, int]:
    return _micros(row["window_start"]), row["key"], row["rows"], row["total"]


def _micros(moment: str) -> int:
    return round(datetime.fromisoformat(moment).timestamp() * 1_000_000)


def replay(changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a client holds after all these records; AssertionError where they break the contract of q.out."""
    held: list[tuple[int, dict[str, Any]]] = []
    seq = stable_seq = epoch = 0
    for record in changes:
        kind = record["type"]
        assert record["seq"] == seq + 1, f"seq {record['seq']} follows {seq}"
        seq = record["seq"]
        if kind == "stable":
            stable_seq = seq
            assert not any(row["_kind"] == "tentative" for _, row in held[-1:]), "stable after tentative"
        assert record["stable_seq"] == stable_seq
        assert record["epoch"] > epoch if kind == "undo" else record["epoch"] >= epoch
        epoch = record["epoch"]
        if kind in ("stable", "tentative"):
            held.append((seq, {**record["data"], "_kind": kind}))
        elif kind == "undo":
            revoked = [row for at, row in held if at > record["after_seq"]]
            assert all(row["_kind"] == "tentative" for row in revoked), "a stable row is undone"
            held = [(at, row) for at, row in held if at <= record["after_seq"]]
    return [row for _, row in held]


def figures_of(
    changes: list[dict[str, Any]], before: list[dict[str, Any]], has_disorder: bool = False
) -> dict[str, Any]:
    """delay_new (R14), tuples sent tentative and undone, over some records. has_disorder: rows may be out of order."""
    given: list[tuple[float, Any]] = []
    delays, undone, outstanding = [], 0, 0
    kinds = Counter(record["type"] for record in changes)
    for at, record in enumerate([*before, *changes], -len(before)):
        t_max = record.get("t_max")
        if record["type"] in ("stable", "tentative") and at >= 0:
            # Tentative ones speak for what had been ingested when they were given.
            is_new = not any(when >= record["ingest_ms"] and reached >= t_max for when, reached in given)
            delays += [record["emitted_ms"] - record["ingest_ms"]] if is_new else []
        if t_max:
            is_tentative = record["type"] == "tentative" or bool(record.get("tentative"))
            speaks_for_all = not is_tentative or (has_disorder and record["cause"] == EARLY)
            when = math.inf if speaks_for_all else record["emitted_ms"]
            given = [entry for entry in given if entry[0] > when or entry[1] > t_max] + [(when, t_max)]
        if at >= 0:
            outstanding += record["type"] == "tentative"
            if record["type"] == "undo":
                undone, outstanding = undone + outstanding, 0
    return {
        "delay_new_ms_max": round(max(delays), 1) if delays else None,
        "stable": kinds["stable"],
        "tentative": kinds["tentative"],
        "undone": undone,
    }


@contextmanager
def flowing(
    directory: Path, query: Mapping[str, Any], sites: tuple[str, ...] = ("a",), ready_s: float = PATIENCE_S
) -> Iterator[Bench]:
    """A deployment that is ready, with rows flowing. ready_s: how long its processes may take to be ready, now and later."""
    with Deployment(directory, query, sites) as deployment:
        deployment.wait_ready(ready_s)
        with KafkaFeeder(deployment) as feeder, Ear(deployment) as ear:
            yield Bench(deployment, feeder, ear, ready_s)


def report(name: str, figures: dict[str, Any]) -> None:
    """Print a line of the table of docs/faults.md, and add it to the file that `make faults` asks for."""
    shown = ("delay_new_ms_max", "stable", "tentative", "undone", "settled_s")
    line = " | ".join(str(cell) for cell in (name.replace("_", " "), *(figures[key] for key in shown)))
    print(f"| {line} |")
    path = os.environ.get("BOREAL_FAULTS_TABLE")
    if path:
        with Path(path).open("a") as file:
            file.write(f"| {line} |\n")
