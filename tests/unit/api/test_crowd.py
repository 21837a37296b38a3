"""Many callers follow one output, and one of them stops reading: nobody notices, and nothing grows."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import uvicorn

from api import create_app
from api.embedded import RingReader
from api.installation import Precondition, View
from api.jobs import Jobs
from api.models import EXAMPLE_SPEC
from api.routers import output as module
from api.settings import ApiSettings
from api.tokens import Role, TokenStore
from boreal.query.spec import load_query
from embedded.live import output as live
from embedded.live.output import OutputRing, RingRecord
from tests.unit.api.memory import MemoryInstallation

CALLERS = 200
BURSTS, BURST = 6, 10
RECORD = json.dumps({"type": "stable", "data": {"text": "x" * 1_900}})


class Ringed(MemoryInstallation):
    """With the output of an embedded query."""

    def __init__(self) -> None:
        super().__init__()
        self.ring = OutputRing()

    def output(self, name: str, view: View) -> Any:
        return RingReader(self.ring, view)

    def give(self, count: int) -> None:
        first = self.ring.last + 1
        self.ring.add([RingRecord(first + place, "stable", RECORD, RECORD) for place in range(count)])


@pytest.fixture
def installation(monkeypatch: pytest.MonkeyPatch) -> Ringed:
    monkeypatch.setattr(live, "KEPT_RECORDS", 2 * BURSTS * BURST)
    monkeypatch.setattr(module, "SEND_WITHIN_S", 1)
    return Ringed()


@pytest.fixture
def address(installation: Ringed, tokens: TokenStore, jobs: Jobs) -> Iterator[tuple[str, int]]:
    """Where the API listens, with little room for what a caller has not read."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    app = create_app(ApiSettings(), installation, tokens, jobs)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield listening.getsockname()
    server.should_exit = True
    thread.join(timeout=10)
    assert not thread.is_alive(), "open streams hold the end"


@pytest.mark.soak
def test_one_that_stops_reading_is_noticed_by_nobody(
    address: tuple[str, int], installation: Ringed, tokens: TokenStore
) -> None:
    token = tokens.create("ours", [Role.ADMIN])[1]
    path = "/api/v1/queries/departures/output?from=all"
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"

    async def connect(buffer: int | None = None) -> asyncio.StreamReader:
        raw = socket.socket()
        if buffer:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, address)
        reader, writer = await asyncio.open_connection(sock=raw, limit=1 << 12 if buffer else 1 << 16)
        writer.write(request.encode())
        writers.append(writer)
        return reader

    async def read_on(reader: asyncio.StreamReader, seen: int) -> None:
        """The events of one phase, all of them, in order. seen: the number of the last one before."""
        last = seen + BURSTS * BURST
        while seen < last:
            line = await asyncio.wait_for(reader.readline(), 60)
            assert line, "the stream has ended"
            if line.startswith(b"id: "):
                assert int(line.split(b":")[2]) == seen + 1
                seen += 1

    here = psutil.Process()

    async def follow() -> list[int]:
        stalled = await connect(4_096)
        readers = await asyncio.gather(*(connect() for _ in range(CALLERS - 1)))
        while installation.ring._next_listener < CALLERS:
            await asyncio.sleep(0.01)
        sizes = []
        for phase in range(2):
            followed = [asyncio.ensure_future(read_on(reader, phase * BURSTS * BURST)) for reader in readers]
            for _ in range(BURSTS):
                installation.give(BURST)
                await asyncio.sleep(0.25)
            await asyncio.gather(*followed)
            gc.collect()
            sizes.append(here.memory_info().rss)
        # The one that has stopped is cut off: what listens for it is gone.
        deadline = time.monotonic() + 60
        while len(installation.ring._listeners) == CALLERS and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        assert len(installation.ring._listeners) == CALLERS - 1 and not stalled.at_eof()
        for writer in writers:
            writer.close()
        return sizes

    writers: list[asyncio.StreamWriter] = []
    installation.put(load_query(EXAMPLE_SPEC), Precondition())
    sizes = asyncio.run(follow())
    assert sizes[1] - sizes[0] < 24 << 20, f"memory grows: {sizes}"
