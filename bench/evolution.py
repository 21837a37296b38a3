"""`boreal bench evolution`: how late results are while a query with much state changes to another version, on a local stack.

A join holds the rows of the last seconds, so many that they come to the state that is asked for; few of them find a partner, so
that the output is small. Once the state is full, the query gets another column. The new version reads all that the topics hold
while the old one answers, catches up, and takes over. Rows flow all the time, at one rate.

`boreal bench evolution rate=2000 state_mb=10` is a smaller one. With `from_state=1` the new version begins with what the old
one keeps, and reads no topic. With `ever=1` a lookup takes the place of the join: its state depends on all rows ever, and is
handed on in checkpoints.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import numpy as np
from kafka import KafkaConsumer, TopicPartition

from bench.commands import Commands, make_topics, stack_up
from bench.figures import Figure, as_report
from formats.client_headers import VERSION
from formats.json_text import time_us
from services.kafka.reading import read_range

NAME = "pairs"
TEXT_BYTES = 200
ROW_BYTES = TEXT_BYTES + 40
"""Of a row in the join's state: two numbers, the text with its offset, and what finds it."""
PARTNERS = 100
"""One row in so many is in the other stream, with the key of an earlier row."""
SETTLE_S = 20.0
"""How long results are looked at before the change, and for how long the change is waited for after that."""
BATCHES_PER_S = 100
AROUND_US = (-2_000_000, 5_000_000)
"""Results of this time around the takeover are those over the switch."""


def main(
    rate: int = 10_000, state_mb: int = 100, x_ms: int = 3_000, replicas: int = 1, from_state: int = 0, ever: int = 0
) -> dict[str, Any]:
    """Measure it; three minutes. rate: rows a second; state_mb: of each replica; x_ms: X; from_state, ever: 1 is yes."""
    fill_s = max(state_mb * 1_000_000 // (rate * ROW_BYTES), 1)
    within_s = None if ever else fill_s
    start = ("--from", "state") if from_state else ()
    # The state of a lookup grows for as long as rows are written.
    fill_s = max(fill_s - int(SETTLE_S), 1) if ever else fill_s
    with tempfile.TemporaryDirectory(prefix="boreal-bench-") as folder:
        return as_report("evolution", list(_figures(Path(folder), rate, fill_s, within_s, x_ms, replicas, start)))


def _figures(
    folder: Path, rate: int, fill_s: int, within_s: int | None, x_ms: int, replicas: int, start: Sequence[str]
) -> Iterator[Figure]:
    with stack_up(Commands(folder / "data")) as (stack, bootstrap):
        make_topics(bootstrap, ("left", "right"))
        path = folder / "pairs.json"
        path.write_text(json.dumps(_query(within_s, x_ms, replicas, {"key": "key"})))
        stack.run("query", "apply", str(path))
        with closing(_Feed(bootstrap, rate)) as feed:
            time.sleep(fill_s + SETTLE_S)
            path.write_text(json.dumps(_query(within_s, x_ms, replicas, {"key": "key", "size": "length(text)"})))
            begun, held = time.time(), feed.written if within_s is None else within_s * rate
            evolved = json.loads(stack.run("query", "apply", str(path), "--evolve", *start))
            took_s = time.time() - begun
            time.sleep(SETTLE_S)
            written = feed.written
        assert (evolved["version"], evolved["evolution"]["state"]) == (2, "taken_over"), evolved
        delays = _delays(bootstrap)
        at_us = min(each.time_us for each in delays if each.version == 2)
    before = [each for each in delays if begun * 1_000 - SETTLE_S * 1_000 <= each.emitted_ms < begun * 1_000]
    over = [each for each in delays if AROUND_US[0] <= each.time_us - at_us < AROUND_US[1]]
    building = [each for each in delays if each.emitted_ms >= begun * 1_000 and each.time_us - at_us < AROUND_US[0]]
    yield Figure("rows a second", written / (fill_s + 2 * SETTLE_S + took_s), "rows/s")
    yield Figure("state of a replica: rows of so long", held / rate, "s")
    yield Figure("state of a replica: about", held * ROW_BYTES / 1e6, "MB")
    yield Figure("X", x_ms, "ms")
    for title, found in (("before", before), ("while the new version catches up", building), ("over the switch", over)):
        values = np.array([each.delay_ms for each in found])
        yield Figure(f"delay of new results {title}: p50", float(np.median(values)), "ms")
        yield Figure(f"delay of new results {title}: slowest", float(values.max()), "ms", float(x_ms), lower_is_better=True)
    yield Figure("tentative results", sum(each.is_tentative for each in delays), "rows")
    yield Figure("from the command to the takeover", took_s, "s")


def _query(within_s: int | None, x_ms: int, replicas: int, select: dict[str, str]) -> dict[str, Any]:
    """within_s: of the join; None: a lookup, whose state has all rows."""
    stream = {"time": "at", "time_unit": "us"}
    join = {"join": ["left", "right"], "within": f"{within_s}s"} if within_s else {"lookup": ["right", "left"]}
    return {
        "name": NAME,
        "streams": {
            "left": {**stream, "topic": "in.left", "schema": {"key": "int", "text": "string"}},
            "right": {**stream, "topic": "in.right", "schema": {"key": "int"}},
        },
        "operators": {
            "joined": {**join, "on": ["key"]},
            "shown": {"map": "joined", "select": select},
        },
        "output": "shown",
        "delay_threshold": f"{x_ms}ms",
        "reconcile": "overlay_redo",
        "replicas": replicas,
        "engine": "native",
    }


class _Feed:
    """Writes rows at a rate until it is closed, each with a text of its own. `written`: how many."""

    def __init__(self, bootstrap: str, rate: int) -> None:
        self.written = 0
        self._batch = max(rate // BATCHES_PER_S, 1)
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._closing.wait(max(due - time.monotonic(), 0)):
            due += 1 / BATCHES_PER_S
            at = time.time_ns() // 1_000
            for key in range(self.written, self.written + self._batch):
                if key % PARTNERS == 0:
                    self._producer.produce("in.right", f'{{"at":{at},"key":{max(key - PARTNERS // 2, 1)}}}')
                else:
                    self._producer.produce("in.left", f'{{"at":{at},"key":{key},"text":"{key:0{TEXT_BYTES}}"}}')
            self.written += self._batch
            self._producer.poll(0)

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._producer.flush(10)


@dataclass(frozen=True, slots=True)
class _Given:
    """A result when it was given first."""

    time_us: int
    emitted_ms: float
    delay_ms: float
    is_tentative: bool
    version: int


def _delays(bootstrap: str) -> list[_Given]:
    """All results, each when it was given first: a correction comes later."""
    partition = TopicPartition(f"{NAME}.out", 0)
    first: dict[int, _Given] = {}
    with closing(KafkaConsumer(bootstrap_servers=bootstrap)) as consumer:
        consumer.assign([partition])
        start, end = consumer.beginning_offsets([partition])[partition], consumer.end_offsets([partition])[partition]
        for record in read_range(consumer, partition, start, end):
            said = json.loads(record.value)
            if said["type"] in ("stable", "tentative"):
                delay_ms, is_tentative = said["emitted_ms"] - said["ingest_ms"], said["type"] == "tentative"
                version = int(dict(record.headers).get(VERSION, b"1"))
                given = _Given(time_us(said["event_time"]), said["emitted_ms"], delay_ms, is_tentative, version)
                first.setdefault(said["data"]["key"], given)
    return list(first.values())
