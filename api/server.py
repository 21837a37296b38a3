"""What both processes of the API share: how it is served, and the options of their command lines."""

from __future__ import annotations

import argparse
import json
from http import HTTPStatus

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.settings import ApiSettings
from boreal.model.problems import MEDIA_TYPE, problem_document

END_WITHIN_S = 1
"""How long open streams may delay the end, in seconds."""

MOST_HEAD_BYTES = 64 << 10
"""So much may come of a request's line and headers after their first packet. Nobody has shown a token by then."""


class Http(HttpToolsProtocol):
    """uvicorn's protocol, which alone would gather headers without an end. What it refuses has a problem document too."""

    _is_in_head = False
    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        began_before = self._is_in_head
        super().data_received(data)
        if began_before and self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
                self._refuse(431, f"the headers have more than {MOST_HEAD_BYTES} bytes", "send fewer or shorter headers")

    def on_message_begin(self) -> None:
        self._is_in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """What cannot be read as HTTP."""
        self._refuse(400, "the request is not HTTP/1.1", "write it by an HTTP client")

    def _refuse(self, status: int, detail: str, fix: str) -> None:
        body = json.dumps(problem_document(status, detail, fix=fix)).encode()
        line = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"
        head = (line, f"Content-Type: {MEDIA_TYPE}", f"Content-Length: {len(body)}", "Connection: close", "", "")
        self.transport.write("\r\n".join(head).encode() + body)
        self.transport.close()


def server_config(app: FastAPI, settings: ApiSettings) -> uvicorn.Config:
    """How uvicorn serves the API."""
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=Http,
        log_level="warning",
        log_config=None,  # as the process logs
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
        server_header=False,
        timeout_graceful_shutdown=END_WITHIN_S,
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that go before the settings of the environment; those that are not given are None."""
    parser.add_argument("--port", type=int, help="the port to listen on, over BOREAL_API__PORT")
    parser.add_argument("--allow-chaos", action="store_true", default=None, help="as BOREAL_API__ALLOW_CHAOS")
