"""`boreal bench neighbours`: what a query that takes all it can get costs the others, on a local stack of this machine.

A steady query (a filter, 500 rows/s, X = 1 s, two replicas) is measured alone, and beside each of these in turn:

    full speed     a filter with a topic full of records, which its source takes as fast as it can
    raises         its operator raises an error once a second
    large state    a lookup whose state comes to a gigabyte, in checkpoints every ten seconds
    unread         three clients ask the API for its rows (500 a second), and read nothing

All run in the same two workers. The p99 delay of the steady query may rise by a fifth and 10 ms.
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import confluent_kafka
import numpy as np
import pyarrow as pa
from kafka import KafkaConsumer, TopicPartition

from bench.busy_queries import busy_query, feeding, send
from bench.commands import make_topics
from bench.departures_stack import departures_stack
from bench.deployment import wait_until
from bench.figures import Figure, as_report
from bench.installing import install
from bench.scale import WORKERS, ScaleStack
from boreal.operators import RowOperator
from services.kafka.reading import read_range

STEADY = "steady"
STEADY_ROWS_PER_S = 500
SETTLE_S, MEASURE_S = 10.0, 30.0
MOST_FACTOR, MOST_MORE_MS = 1.2, 10.0
"""How much longer the p99 delay beside a neighbour may be."""

FAST_ROWS, FAST_STEP_US = 8_000_000, 100
"""How many rows, and the time between two of them: as if 10,000 had come in a second."""
RAISES_EVERY_S = 1.0
STATE_MB = 1_000
TEXT_BYTES = 1_000
STATE_ROW_BYTES = TEXT_BYTES + 40
"""Of a row in the lookup's state."""
FILL_WITHIN_S = 180.0
UNREAD_CLIENTS = 3
UNREAD_ROWS_PER_S = 500


class Raising(RowOperator):
    """Passes all rows, and raises once a second."""

    deterministic = True

    raised_at = 0.0

    def process(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        if time.monotonic() - Raising.raised_at > RAISES_EVERY_S:
            Raising.raised_at = time.monotonic()
            raise ValueError("it raises once a second")
        return pa.array([True] * rows.num_rows)


@dataclass(frozen=True)
class _Place:
    """Where neighbours run."""

    stack: ScaleStack
    bootstrap: str
    api: str
    token: str


def main(state_mb: int = STATE_MB, fast_rows: int = FAST_ROWS, seconds: int = int(MEASURE_S)) -> dict[str, Any]:
    """Measure it; ten minutes. state_mb: of each replica of the lookup; fast_rows: in the topic of the fast query; seconds: of
    each measurement."""
    neighbours: dict[str, Callable[[_Place], AbstractContextManager[None]]] = {
        "full speed": lambda place: _at_full_speed(place, fast_rows),
        "raises": _raising,
        "large state": lambda place: _with_large_state(place, state_mb),
        "unread": _unread,
    }
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="boreal-bench-") as name, ExitStack() as open_:
        _register(Path(name) / "site", open_)
        stack, bootstrap = open_.enter_context(departures_stack(ScaleStack, Path(name), WORKERS))
        status = json.loads(stack.run("status"))
        place = _Place(stack, bootstrap, status["api"], status["token"])
        make_topics(bootstrap, [STEADY, "fast", "raises", "left", "right", "unread"])
        stack.apply_query(busy_query(STEADY))
        open_.enter_context(feeding(bootstrap, [STEADY], STEADY_ROWS_PER_S))
        for title, neighbour in neighbours.items():
            time.sleep(SETTLE_S)
            alone = _delays(bootstrap, seconds)
            with neighbour(place):
                figures += _compared(title, alone, _delays(bootstrap, seconds))
    return as_report("neighbours", figures)


def _compared(title: str, alone: np.ndarray, beside: np.ndarray) -> Iterator[Figure]:
    before, after = (float(np.percentile(delays, 99)) for delays in (alone, beside))
    yield Figure(f"{title}: the steady query alone, p50", float(np.percentile(alone, 50)), "ms")
    yield Figure(f"{title}: beside it, p50", float(np.percentile(beside, 50)), "ms")
    yield Figure(f"{title}: the steady query alone, p99", before, "ms")
    yield Figure(f"{title}: beside it, p99", after, "ms", MOST_FACTOR * before + MOST_MORE_MS, lower_is_better=True)
    yield Figure(f"{title}: beside it, longest", float(beside.max()), "ms", 1_000, lower_is_better=True)


def _delays(bootstrap: str, seconds: float) -> np.ndarray:
    """How long the rows of the steady query took from ingest to q.out, in milliseconds, for so many seconds."""
    place = TopicPartition(f"{STEADY}.out", 0)
    found: dict[int, float] = {}
    with closing(KafkaConsumer(bootstrap_servers=bootstrap)) as consumer:
        consumer.assign([place])
        start = consumer.end_offsets([place])[place]
        time.sleep(seconds)
        for record in read_range(consumer, place, start, consumer.end_offsets([place])[place]):
            said = json.loads(record.value)
            if said["type"] in ("stable", "tentative"):
                found.setdefault(said["data"]["k"], said["emitted_ms"] - said["ingest_ms"])
    return np.array(list(found.values()))


# Neighbours: each is there while its context is open


@contextmanager
def _running(place: _Place, query: dict[str, Any]) -> Iterator[None]:
    place.stack.apply_query(query)
    try:
        yield
    finally:
        place.stack.run("query", "delete", query["name"])


@contextmanager
def _at_full_speed(place: _Place, rows: int) -> Iterator[None]:
    at = time.time_ns() // 1_000 - rows * FAST_STEP_US
    values = (b'{"at": %d, "k": %d}' % (at + number * FAST_STEP_US, number) for number in range(rows))
    _fill(place.bootstrap, "in.fast", values)
    with _running(place, busy_query("fast")):
        yield


@contextmanager
def _raising(place: _Place) -> Iterator[None]:
    query = busy_query("raises")
    query["operators"] = {"some": {"python": "rows", "operator": "raising"}}
    with _running(place, query), feeding(place.bootstrap, ["raises"], 10):
        time.sleep(SETTLE_S)
        yield


@contextmanager
def _with_large_state(place: _Place, state_mb: int) -> Iterator[None]:
    count = state_mb * 1_000_000 // STATE_ROW_BYTES
    at = time.time_ns() // 1_000 - count
    rows = (b'{"at": %d, "k": %d, "text": "%0*d"}' % (at + number, number, TEXT_BYTES, number) for number in range(count))
    _fill(place.bootstrap, "in.left", rows)
    stream = {"time": "at", "time_unit": "us"}
    query = {
        **busy_query("large"),
        "streams": {
            "left": {**stream, "topic": "in.left", "schema": {"k": "int", "text": "string"}},
            "right": {**stream, "topic": "in.right", "schema": {"k": "int"}},
        },
        "operators": {"some": {"lookup": ["right", "left"], "on": ["k"]}, "few": {"map": "some", "select": {"k": "k"}}},
        "output": "few",
        "reconcile": "overlay_redo",
    }
    with feeding(place.bootstrap, ["right"], 100), _running(place, query):

        def is_full() -> bool:
            said = json.loads(place.stack.run("query", "show", "large"))
            return int(said["streams"]["left"]["rows"]) >= count

        wait_until(is_full, "the lookup's state is filled", within_s=FILL_WITHIN_S)
        time.sleep(SETTLE_S)
        yield


@contextmanager
def _unread(place: _Place) -> Iterator[None]:
    with feeding(place.bootstrap, ["unread"], UNREAD_ROWS_PER_S), _running(place, busy_query("unread")), ExitStack() as open_:
        ended = threading.Event()
        clients = [threading.Thread(target=_ask, args=(place, ended), daemon=True) for _ in range(UNREAD_CLIENTS)]
        for client in clients:
            client.start()
            open_.callback(client.join)
        open_.callback(ended.set)
        time.sleep(SETTLE_S)
        yield


def _ask(place: _Place, ended: threading.Event) -> None:
    """Ask for all rows, read nothing, and ask again when the API ends it."""
    address = urlsplit(place.api)
    request = (
        f"GET /api/v1/queries/unread/output?from=all HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {place.token}\r\n\r\n"
    )
    while not ended.is_set():
        with socket.create_connection((address.hostname, address.port)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            connection.sendall(request.encode())
            ended.wait(12)  # the API ends what is not read for ten seconds


def _fill(bootstrap: str, topic: str, values: Iterator[bytes]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 50})
    for value in values:
        send(producer, topic, value)
    producer.flush()


def _register(site: Path, open_: ExitStack) -> None:
    """Let processes that this one starts find the operator, as if a package had been installed."""
    sys.path.append(str(install(site, "boreal-bench", "1", {"raising": f"{__name__}:{Raising.__name__}"})))
    open_.callback(sys.path.remove, str(site))
