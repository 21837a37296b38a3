"""A link: a SOCKS5 proxy between one process and its brokers, which can be cut, slowed and healed while both run.

If the process has it in its settings (BOREAL_PROXIES__A=socks5://127.0.0.1:PORT), all its traffic with that site goes through
the link. A link that is cut is a black hole, like a pulled cable: bytes on their way stop, connections stay open, and new ones
hang; after it is healed all bytes arrive, late but complete. A link that is reset breaks its connections and refuses new ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Coroutine, Iterable
from math import inf
from types import TracebackType
from typing import Any, Self

from services.stack.servers import HOST, free_port

CHUNK_BYTES = 64 << 10
CHUNKS_UNDER_WAY = 64

_VERSION = 5
_CONNECT = 1
_NO_AUTHENTICATION = 0
_SUCCEEDED, _UNREACHABLE, _NOT_SUPPORTED = 0, 4, 7
_IPV4, _NAME, _IPV6 = 1, 3, 4


class ProxyLink:
    """A proxy in a thread; it listens as soon as it is made. All methods may be called from any thread, and have had their
    effect when they return. As a context: closed at the end."""

    def __init__(self, port: int = 0) -> None:
        """port: to listen on at 127.0.0.1; 0 for any free one. OSError if it is taken."""
        self.port = port or free_port()
        self._loop = asyncio.new_event_loop()
        self._flow = _ProxyServer(self.port)
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"link-{self.port}", daemon=True)
        self._thread.start()
        try:
            self._do(self._flow.listen())
        except OSError:
            self.close()
            raise

    @property
    def url(self) -> str:
        """The address for kafka-python's proxy_url and for BOREAL_PROXIES."""
        return f"socks5://{HOST}:{self.port}"

    def cut(self, *, reset: bool = False) -> None:
        """Let nothing through. reset: break all connections, and refuse new ones."""
        self._do(self._flow.cut(reset))

    def slow(self, delay_s: float) -> None:
        """Delay all bytes, in both directions, by `delay_s` seconds; 0 for no delay. The throughput stays the same."""
        self._do(self._flow.slow(delay_s))

    def narrow(self, bytes_per_s: float) -> None:
        """Limit the throughput of each connection, in each direction."""
        self._do(self._flow.narrow(bytes_per_s))

    def heal(self) -> None:
        """Undo all cuts, delays and limits."""
        self._do(self._flow.heal())

    def close(self) -> None:
        """Break all connections, and stop listening."""
        if self._loop.is_closed():
            return
        self._do(self._flow.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _do(self, act: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(act, self._loop).result()


class RoleLinks:
    """The links of one process, or of one role in a worker, the same for all its incarnations."""

    def __init__(self, sites: Iterable[str], streams: Iterable[str] = ()) -> None:
        """streams: those whose logs it reads."""
        self._sites = {site: ProxyLink() for site in sites}
        self._streams = {stream: ProxyLink() for stream in streams}

    def of(self, stream: str = "") -> list[ProxyLink]:
        """The link to a stream's log; without a stream, all links."""
        return [self._streams[stream]] if stream else [*self._sites.values(), *self._streams.values()]

    @property
    def settings(self) -> dict[str, dict[str, str]]:
        """The role's `proxies` and `stream_proxies` (services/kafka/settings.py)."""
        return {
            "proxies": {site: link.url for site, link in self._sites.items()},
            "stream_proxies": {stream: link.url for stream, link in self._streams.items()},
        }

    def close(self) -> None:
        for link in self.of():
            link.close()


class _ProxyServer:
    """The proxy server itself; it runs in the thread of a link."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._delay_s = 0.0
        self._bytes_per_s = inf

    async def listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, HOST, self._port)

    async def cut(self, reset: bool) -> None:
        self._is_open.clear()
        if reset:
            await self._break_all()

    async def slow(self, delay_s: float) -> None:
        self._delay_s = delay_s

    async def narrow(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s

    async def heal(self) -> None:
        self._delay_s = 0.0
        self._bytes_per_s = inf
        await self.listen()
        self._is_open.set()

    async def close(self) -> None:
        await self._break_all()

    async def _break_all(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        connections = list(self._connections.items())
        for task, writers in connections:
            for writer in writers:
                _reset(writer)
            task.cancel()
        await asyncio.gather(*(task for task, _ in connections), return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        writers = self._connections[task] = [writer]
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                far_reader, far_writer = await self._connect(reader, writer)
                writers.append(far_writer)
                await _first_to_end(self._carry(reader, far_writer), self._carry(far_reader, writer))
        finally:
            for each in writers:
                each.close()
            del self._connections[task]

    async def _connect(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The SOCKS5 handshake (RFC 1928), and the connection that it asks for.

        A cut lies behind the proxy, so the handshake is answered even then, and only the connection beyond it hangs. Kafka's
        client would not wait during a handshake, but retry at the full speed of a processor.
        """
        _, count = await reader.readexactly(2)
        await reader.readexactly(count)
        writer.write(bytes((_VERSION, _NO_AUTHENTICATION)))
        _, command, _, kind = await reader.readexactly(4)
        if kind == _NAME:
            host = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
        elif kind in (_IPV4, _IPV6):
            family, length = (socket.AF_INET, 4) if kind == _IPV4 else (socket.AF_INET6, 16)
            host = socket.inet_ntop(family, await reader.readexactly(length))
        else:
            raise await _refusal(writer, _NOT_SUPPORTED)
        port = int.from_bytes(await reader.readexactly(2))
        if command != _CONNECT:
            raise await _refusal(writer, _NOT_SUPPORTED)
        is_answered = not self._is_open.is_set()
        if is_answered:
            writer.write(_reply(_SUCCEEDED))
            await self._is_open.wait()
        try:
            far = await asyncio.open_connection(host, port)
        except OSError:
            if is_answered:
                raise
            raise await _refusal(writer, _UNREACHABLE) from None
        if not is_answered:
            writer.write(_reply(_SUCCEEDED))
        return far

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy one direction: bytes are written in order, when their delay is over and the link is open."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS_UNDER_WAY)

        async def take() -> None:
            data = b"-"
            while data:
                data = await reader.read(CHUNK_BYTES)
                await under_way.put((time.monotonic(), data))

        async def give() -> None:
            while True:
                taken, data = await under_way.get()
                while (left := taken + self._delay_s - time.monotonic()) > 0:
                    await asyncio.sleep(left)
                await asyncio.sleep(len(data) / self._bytes_per_s)
                await self._is_open.wait()
                if not data:
                    return
                writer.write(data)
                await writer.drain()

        async with asyncio.TaskGroup() as group:
            group.create_task(take())
            group.create_task(give())


async def _first_to_end(*directions: Coroutine[Any, Any, None]) -> None:
    """Run both directions until one side ends or breaks; the other's connection is then closed as well."""
    tasks = [asyncio.ensure_future(direction) for direction in directions]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _refusal(writer: asyncio.StreamWriter, code: int) -> OSError:
    writer.write(_reply(code))
    await writer.drain()
    return OSError(f"SOCKS request refused: {code}")


def _reply(code: int) -> bytes:
    return bytes((_VERSION, code, 0, _IPV4, 0, 0, 0, 0, 0, 0))


def _reset(writer: asyncio.StreamWriter) -> None:
    """Abort a connection, so that the peer sees 'connection reset' and not an orderly end."""
    connection: socket.socket | None = writer.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    writer.transport.abort()
