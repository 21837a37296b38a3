"""`boreal bench handovers`: what the rows of one batch cost, alone and while another thread of the process always has work, in
processor time; and how long it takes then until they are done.

Python runs one thread at a time. Nearly every call of Arrow's lets another thread have the interpreter, and who called gets it
back some milliseconds later. So few rows do not pass through
Arrow where texts are made of them, and where they are parsed (formats.few_texts, formats.few_records).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from bench.figures import Figure, as_report
from boreal.model import codec
from boreal.model.frames import Data, Origin
from boreal.model.schema import Schema
from boreal.query.plan import Edge
from boreal.query.spec import Stream
from formats.changelog import Changelog, RowRecords
from formats.json_text import encoded
from intake.intake import Intake, SourceStream, form_of
from intake.place import SourcePlace
from intake.user_records import PartitionRecords

ROWS = 150
MEASURE_S = 0.5
"""Much longer than a thread waits for the interpreter before it demands it."""
BUCKET_US = 100_000
NOW_US = 1_800_000_000_000_000
APART_US = 2_000
SCHEMA = Schema.of({"k": "int"})
STREAM = {"topic": "t", "time": "at", "time_unit": "us", "schema": {"k": "int"}}


def main(rows: int = ROWS) -> dict[str, Any]:
    """Measure it; ten seconds. rows: of a batch."""
    frame = _frame(rows)
    sent = codec.encode(frame)
    parts: list[tuple[str, Callable[[], object]]] = [
        ("texts for clients", lambda: _texts(frame)),
        ("JSON records made, and to frames", _source(rows)),
        ("a frame's bytes", lambda: codec.encode(frame)),
        ("a frame from its bytes", lambda: codec.decode(sent)),
    ]
    figures: list[Figure] = []
    for title, work in parts:
        figures += _figures(f"{rows} rows, {title}", work)
    with patch("formats.json_text.FEW_ROWS", 0), patch("formats.record_parsing.FEW_RECORDS", 0):
        for title, work in parts[:2]:
            figures += _figures(f"{rows} rows, {title}, by Arrow", work)
    return as_report("handovers", figures)


def _figures(title: str, work: Callable[[], object]) -> Iterator[Figure]:
    alone_us, _ = _microseconds(work)
    with _busy_thread():
        beside_us, wall_us = _microseconds(work)
    yield Figure(f"{title}: alone", alone_us, "us")
    yield Figure(f"{title}: beside a busy thread", beside_us, "us")
    yield Figure(f"{title}: the same, until done", wall_us, "us")


def _microseconds(work: Callable[[], object]) -> tuple[float, float]:
    """The processor time of this thread for it, and the time that passes."""
    work()
    used, began = time.thread_time(), time.monotonic()
    times = 0
    while (past_s := time.monotonic() - began) < MEASURE_S:
        work()
        times += 1
    return (time.thread_time() - used) / times * 1e6, past_s / times * 1e6


@contextmanager
def _busy_thread() -> Iterator[None]:
    """While it holds, a thread asks for the interpreter all the time."""
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            sum(range(1_000))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _frame(rows: int) -> Data:
    times = pa.array(np.arange(NOW_US, NOW_US + rows * APART_US, APART_US))
    batch = pa.record_batch([times, pa.array(np.arange(rows))], schema=SCHEMA.arrow)
    end_us = NOW_US + rows * APART_US
    return Data(Origin("r0", 1), 0, 0, batch, False, ((end_us, end_us),), end_us)


def _texts(frame: Data) -> None:
    given = Changelog("q", SCHEMA, (), BUCKET_US).take(frame, NOW_US)
    assert isinstance(given, RowRecords)
    encoded(given.records)
    encoded(given.data)


def _source(rows: int) -> Callable[[], object]:
    """Takes the next batch with each call."""
    spec = Stream.model_validate(STREAM)
    stream = SourceStream("s", spec, "t", (Edge("s", "s", SCHEMA, 1, 1, (), True),), BUCKET_US)
    intake = Intake(stream, Origin("", 1), SourcePlace({"s/0": 0}), form=form_of(spec))
    taken = 0

    def take() -> None:
        nonlocal taken
        values: list[bytes | None] = [
            b'{"at": %d, "k": %d}' % (NOW_US + number * APART_US, number) for number in range(taken, taken + rows)
        ]
        records = PartitionRecords(np.arange(taken, taken + rows), values)
        taken += rows
        for _, frame in intake.take({0: records}, NOW_US + taken * APART_US).frames:
            codec.encode(frame)

    return take
