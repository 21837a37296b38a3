"""Where rows are posted: a port that somebody else has is told of."""

from __future__ import annotations

import logging
import socket
from contextlib import closing

import pytest
from fastapi import FastAPI

from services.source.web import WebServer


def test_a_port_that_is_taken_is_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "boreal.source")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with closing(WebServer(FastAPI(), "127.0.0.1", port)) as server:
            server._thread.join(10)
    [said] = [record.getMessage() for record in caplog.records if record.name == "boreal.source"]
    assert "BOREAL_HTTP_PORT" in said and f"127.0.0.1:{port}" in said
