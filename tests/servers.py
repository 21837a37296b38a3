"""What tests put around real servers: certificates, and TLS in front of a server that speaks none."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Certificates:
    """PEM files: an authority, and what it signed for 127.0.0.1 and localhost."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(directory: Path) -> Certificates:
    """A new authority and a server's certificate, made by the openssl program, good for two days."""
    directory.mkdir(parents=True, exist_ok=True)
    made = Certificates(directory / "authority.pem", directory / "server.pem", directory / "server.key")
    authority_key, request, extensions = directory / "authority.key", directory / "server.csr", directory / "extensions"
    extensions.write_text(f"subjectAltName=IP:{HOST},DNS:localhost\nbasicConstraints=CA:FALSE\n")

    def openssl(*arguments: str | Path) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)

    new, days = ("-newkey", "rsa:2048", "-nodes"), ("-days", "2")
    openssl("req", "-x509", *new, "-keyout", authority_key, "-out", made.authority, *days, "-subj", "/CN=boreal's tests")
    openssl("req", *new, "-keyout", made.key, "-out", request, "-subj", f"/CN={HOST}")
    openssl("x509", "-req", "-in", request, "-CA", made.authority, "-CAkey", authority_key, "-CAcreateserial",
            "-out", made.certificate, *days, "-extfile", extensions)
    return made


@contextmanager
def tls_before(port: int, certificates: Certificates) -> Iterator[int]:
    """A port that takes TLS and passes on what was said in it to `port`: for servers built without TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    ready = threading.Event()
    listening: list[int] = []
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward_writer = await asyncio.open_connection(HOST, port)
        await asyncio.gather(carry(reader, onward_writer), carry(onward_reader, writer))

    async def serve() -> None:
        server = await asyncio.start_server(connect, HOST, 0, ssl=context)
        listening.append(server.sockets[0].getsockname()[1])
        ready.set()
        await over.wait()
        server.close()
        connections = asyncio.all_tasks() - {asyncio.current_task()}
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    thread = threading.Thread(target=loop.run_until_complete, args=[serve()])
    thread.start()
    ready.wait(10)
    try:
        yield listening[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()
