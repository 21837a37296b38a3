"""Where rows are posted: in which shapes, and what is told of a port that somebody else has."""

from __future__ import annotations

import datetime
import json
import logging
import socket
from contextlib import closing

import pyarrow as pa
import pytest
from fastapi import FastAPI

from services.source.web import ARROW, WebServer, _records


def test_a_port_that_is_taken_is_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "boreal.source")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with closing(WebServer(FastAPI(), "127.0.0.1", port)) as server:
            server._thread.join(10)
    [said] = [record.getMessage() for record in caplog.records if record.name == "boreal.source"]
    assert "BOREAL_HTTP_PORT" in said and f"127.0.0.1:{port}" in said


def test_nanoseconds_are_taken_as_microseconds() -> None:
    at = pa.array([1_000_000_001_999, None], pa.timestamp("ns", "UTC"))
    table = pa.table({"at": at, "landed": at.cast(pa.timestamp("ns")), "n": [1, 2]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    first, second = map(json.loads, _records(ARROW, sink.getvalue().to_pybytes()))
    moment = datetime.datetime(1970, 1, 1, 0, 16, 40, 1, datetime.UTC)
    assert first == {"at": moment.isoformat(), "landed": moment.replace(tzinfo=None).isoformat(), "n": 1}
    assert second == {"at": None, "landed": None, "n": 2}
