"""`boreal bench api`: an installation as its callers meet it, over HTTP, all on this machine's cores: an embedded one, and for
changes of X a stack too.

The figures include the work of the callers, and of the queries that run meanwhile.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from bench.figures import Figure, as_report
from boreal.api_client import ApiClient, ApiError
from boreal.query.spec import load_query
from deployment.query_record import QueryRecord
from embedded.live.query import LiveQuery
from embedded.world import SkipClock
from services.stack.ports import free_port

CLIENTS, EACH_PER_S, READS_S = 50, 5.0, 10.0
READS = ("/api/v1/queries", "/api/v1/queries/departures/status", "/api/v1/overview", "/api/v1/queries/departures/explain-delay")
CHANGES = 5
HELD_S = 1.0
CUT_S = 4
"""How long a cut on a stack lasts; an embedded one is ended when its effect was seen."""
SHOWN = "name => [...document.querySelectorAll('td a')].some(each => each.textContent === name) && performance.now()"
"""When a page shows a query of its list, looked for with each frame."""
CHROMIUM = Path("/usr/bin/chromium")
BATCHES, BATCH_ROWS = 8, 25_000
DEADLINE_S = 30.0
QUERIES, LOOKS = 2_000, 9

SCHEMA = {"key": "string", "value": "double"}
MOVING: dict[str, Any] = {
    "name": "moving",
    "streams": {name: {"time": "at", "time_unit": "ms", "schema": SCHEMA, "boundary": "clock"} for name in ("left", "right")},
    "operators": {"all": {"union": ["left", "right"]}},
    "output": "all",
    "delay_threshold": "9s",
    "replicas": 1,
}
MOVING_ON_A_STACK: dict[str, Any] = {
    **MOVING,
    "streams": {name: {**stream, "topic": f"in.{name}"} for name, stream in MOVING["streams"].items()},
    "replicas": 2,
    "engine": "native",
}
GIVEN: dict[str, Any] = {
    **MOVING,
    "name": "given",
    "streams": {"rows": {"time": "at", "time_unit": "ms", "schema": SCHEMA, "disorder": "1h"}},
    "operators": {"all": {"filter": "rows", "where": "value > 1e9"}},
}


def main() -> dict[str, Any]:
    """Measure all of it; about three minutes."""
    with tempfile.TemporaryDirectory() as directory, _demo(Path(directory)) as (api, address, token, start):
        figures = [
            Figure("up --embedded --demo: ready", start["ready"], "s", 3.0, lower_is_better=True),
            Figure("up --embedded --demo: first row at a client", start["row"], "s", 5.0, lower_is_better=True),
            *_reads(address, token),
            *_page(address, token),
            *_changes_of_x("embedded", api, MOVING),
            *_rows(api, address, token),
        ]
    with tempfile.TemporaryDirectory() as directory:
        figures += _many(Path(directory))
    with (
        tempfile.TemporaryDirectory() as directory,
        _up(Path(directory), "--allow-chaos") as (address, token),
        ApiClient(address, token) as api,
    ):
        figures += _changes_of_x("a stack", api, MOVING_ON_A_STACK)
    return as_report("api", figures)


def _many(data: Path) -> list[Figure]:
    """How long lists take where there are QUERIES queries, which are paused."""
    for number in range(QUERIES):
        name = f"q{number:04}"
        record = QueryRecord(name, load_query({**MOVING, "name": name}).dump(), 1, paused=True)
        LiveQuery(record, False, data / "queries" / name, SkipClock()).save()
    with _up(data, "--embedded") as (address, token):
        figures = _painted(f"page with {QUERIES:,} queries", address, token, "q0000")
        for name, path in (("the page's list", "overview"), ("all in full", f"queries?limit={QUERIES}")):
            request = urllib.request.Request(f"{address}/api/v1/{path}", headers={"Authorization": f"Bearer {token}"})
            took = []
            for _ in range(LOOKS):
                began = time.monotonic()
                with urllib.request.urlopen(request) as answer:
                    assert len(json.load(answer)["queries"]) == QUERIES
                took.append(1_000 * (time.monotonic() - began))
            figures.append(Figure(f"{QUERIES:,} queries, {name}", float(np.median(took)), "ms", 300.0, lower_is_better=True))
        return figures


@contextmanager
def _up(data: Path, *options: str) -> Iterator[tuple[str, str]]:
    """An installation: its address and token."""
    command = [sys.executable, "-m", "boreal"]
    wanted = [*options, "--data", str(data), "--port", str(free_port()), "--json"]
    try:
        up = json.loads(subprocess.run([*command, "up", *wanted], check=True, capture_output=True, text=True).stdout)
        yield up["api"], up["token"]
    finally:
        subprocess.run([*command, "down", "--data", str(data)], check=True, capture_output=True)


@contextmanager
def _demo(data: Path) -> Iterator[tuple[ApiClient, str, str, dict[str, float]]]:
    """The demo: a client, its address and token, and how long it took until it was ready and gave a row, in seconds."""
    began = time.monotonic()
    with _up(data, "--embedded", "--demo") as (address, token):
        ready = time.monotonic() - began
        with ApiClient(address, token) as api:
            next(event for event in api.output("departures", view="all") if event.type in ("stable", "tentative"))
            yield api, address, token, {"ready": ready, "row": time.monotonic() - began}


def _reads(address: str, token: str) -> list[Figure]:
    """How long reads take while many callers read, each over a connection of its own."""
    place = urlsplit(address)

    async def client(number: int, took: list[float]) -> None:
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        begin = time.monotonic() + number / CLIENTS / EACH_PER_S
        for turn in range(int(READS_S * EACH_PER_S)):
            await asyncio.sleep(max(begin + turn / EACH_PER_S - time.monotonic(), 0))
            path = READS[(number + turn) % len(READS)]
            asked = time.monotonic()
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            assert head.startswith("http/1.1 200"), head
            await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r\n")[0]))
            took.append(time.monotonic() - asked)
        writer.close()

    async def all_clients() -> list[float]:
        took: list[float] = []
        await asyncio.gather(*(client(number, took) for number in range(CLIENTS)))
        return took

    took_ms = np.array(asyncio.run(all_clients())) * 1_000
    name = f"reads, {CLIENTS} clients at {EACH_PER_S:g} a second:"
    return [
        Figure(f"{name} p50", float(np.percentile(took_ms, 50)), "ms"),
        Figure(f"{name} p99", float(np.percentile(took_ms, 99)), "ms", 30.0, lower_is_better=True),
    ]


def _page(address: str, token: str) -> list[Figure]:
    """What a browser loads first, and how soon it paints: where there is a Chromium, and Playwright to drive it."""
    static = Path(__file__).resolve().parents[1] / "api" / "static"
    served = [path for path in static.iterdir() if path.suffix in (".html", ".js", ".css", ".svg")]
    size = sum(len(gzip.compress(path.read_bytes())) for path in served)
    compressed = Figure("page, compressed", size / 1_000, "KB", 100.0, lower_is_better=True)
    return [compressed, *_painted("page", address, token, "departures")]


def _painted(name: str, address: str, token: str, query: str) -> list[Figure]:
    """How long a browser that has nothing yet takes to paint something, and to show a query of the list."""
    if not CHROMIUM.exists() or find_spec("playwright") is None:
        return []
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto(f"{address}/#token={token}")
        shown = page.wait_for_function(SHOWN, arg=query).json_value()
        answered = page.evaluate("performance.getEntriesByType('resource').find(e => e.name.includes('/overview')).responseEnd")
        painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        browser.close()
    return [
        Figure(f"{name}, first paint", float(painted), "ms", 1_000.0, lower_is_better=True),
        Figure(f"{name}, its list on the screen", float(shown), "ms", 1_000.0, lower_is_better=True),
        Figure(f"{name}, from the answer to the screen", float(shown - answered), "ms", 300.0, lower_is_better=True),
    ]


def _changes_of_x(where: str, api: ApiClient, query: dict[str, Any]) -> list[Figure]:
    """From the change of X, while results are held back for longer than the new X, to the first tentative one at a client."""
    is_stack = query is MOVING_ON_A_STACK
    _apply(api, query)
    took = []
    for _ in range(CHANGES):
        api.change("moving", delay_threshold="9s")
        _wait(lambda: (api.status("moving")["alpha_x_ms"] or 0) > 1_000)
        api.call("POST", "/chaos", {"fault": f"cut moving.left for {CUT_S if is_stack else 60}s"})
        seen = _Seen(api, "moving", "tentative")
        held_until = time.monotonic() + HELD_S
        while time.monotonic() < held_until:
            api.append("moving.right", [{"at": int(time.time() * 1_000) + 200, "key": "k", "value": 1.0}])
            time.sleep(0.05)
        changed = time.monotonic()
        api.change("moving", delay_threshold="700ms")
        took.append((seen.at() - changed) * 1_000)
        if not is_stack:
            api.call("POST", "/chaos", {"fault": "heal moving.left"})
        _wait(lambda: _is_whole(api.status("moving")))
    return [Figure(f"X changed to its effect, {where}, longest", max(took), "ms", 200.0, lower_is_better=True)]


def _is_whole(status: dict[str, Any]) -> bool:
    """Whether the query has corrected all, and lacks nothing."""
    return status["tentative"]["outstanding"] == 0 and all(each["state"] == "STABLE" for each in status["replicas"])


class _Seen:
    """When the next event of a type came, seen by a thread that listens from now on."""

    def __init__(self, api: ApiClient, query: str, kind: str) -> None:
        self._events = api.output(query, view="all", last=1)
        next(self._events)  # it is connected
        self._kind = kind
        self._came: list[float] = []
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def at(self) -> float:
        self._thread.join(DEADLINE_S)
        return self._came[0]

    def _listen(self) -> None:
        next(event for event in self._events if event.type == self._kind)
        self._came.append(time.monotonic())
        self._events.close()  # type: ignore[attr-defined]


def _rows(api: ApiClient, address: str, token: str) -> list[Figure]:
    """Rows a second that are posted, one request after the other, until each request's rows survive a crash."""
    _apply(api, GIVEN)
    begin_ms = int(time.time() * 1_000)
    table = pa.table({"at": range(begin_ms, begin_ms + BATCH_ROWS), "key": ["key"] * BATCH_ROWS, "value": [1.0] * BATCH_ROWS})
    lines = "".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode()
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    figures = []
    for name, kind, body, target in (
        ("JSON lines", "application/x-ndjson", lines, 50_000.0),
        ("Arrow", "application/vnd.apache.arrow.stream", stream.getvalue(), 300_000.0),
    ):
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        began = time.monotonic()
        for _ in range(BATCHES):
            request = urllib.request.Request(f"{address}/api/v1/streams/given.rows/tuples", body, headers, method="POST")
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                accepted = json.loads(answer.read())["accepted"]
            assert accepted == BATCH_ROWS, f"{accepted} of {BATCH_ROWS} rows"
        rate = BATCHES * BATCH_ROWS / (time.monotonic() - began)
        figures.append(Figure(f"rows posted as {name}", rate, "rows/s", target))
    return figures


def _apply(api: ApiClient, query: dict[str, Any]) -> None:
    api.put(query)
    _wait(lambda: api.liveness(str(query["name"]))["live"])


def _wait(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            if holds():
                return
        except ApiError:
            pass
        time.sleep(0.05)
    raise TimeoutError("the installation does not answer as expected")
