"""Where rows are posted: in which shapes, and what is told of a port that somebody else has."""

from __future__ import annotations

import json
import logging
import socket
import time
import urllib.error
import urllib.request
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from fastapi import FastAPI

from boreal.model.schema import Schema
from formats.record_parsing import RecordShape
from services.source.post_box import PostBox
from services.source.web import ARROW, WebServer, _records, create_app
from services.stack.servers import free_port


def test_a_port_that_is_taken_is_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "boreal.source")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with closing(WebServer(FastAPI(), "127.0.0.1", port)) as server:
            server._thread.join(10)
    [said] = [record.getMessage() for record in caplog.records if record.name == "boreal.source"]
    assert "BOREAL_HTTP_PORT" in said and f"127.0.0.1:{port}" in said


def test_rows_of_another_stream_are_not_taken_though_they_have_the_same_shape() -> None:
    taken: list[list[bytes]] = []

    def take(records: list[bytes]) -> bool:
        taken.append(records)
        return True

    box = SimpleNamespace(post=take)
    shape, port = RecordShape("at", "ms", Schema.of({"n": "int"})), free_port()

    def post(path: str) -> tuple[int, dict[str, object]]:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", b'{"at": 1, "n": 2}')
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    with closing(WebServer(create_app(cast(PostBox, box), shape, "q", "jfk"), "127.0.0.1", port)) as server:
        while not server._server.started:
            time.sleep(0.01)
        assert post("/q/jfk/tuples") == (202, {"accepted": 1, "refused": 0, "durable": "kafka"})
        status, answer = post("/q/lga/tuples")
    assert status == 404 and "/q/jfk/tuples" in str(answer["error"])
    assert len(taken) == 1


def test_nanoseconds_are_taken_as_microseconds() -> None:
    at = pa.array([1_000_000_001_999, None], pa.timestamp("ns", "UTC"))
    table = pa.table({"at": at, "landed": at.cast(pa.timestamp("ns")), "n": [1, 2]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    first, second = map(json.loads, _records(ARROW, sink.getvalue().to_pybytes()))
    assert first == {"at": "1970-01-01T00:16:40.000001Z", "landed": "1970-01-01T00:16:40.000001Z", "n": 1}
    assert second == {"at": None, "landed": None, "n": 2}


def test_an_arrow_stream_is_the_rows_that_it_holds_also_where_a_column_has_no_quick_text() -> None:
    rows: list[dict[str, Any]] = [
        {"s": 'a"b\n\u00e9', "i": -1, "d": 1.5, "b": True, "nested": {"x": [1]}, "odd": float("inf")},
        {"s": None, "i": None, "d": None, "b": None, "nested": None, "odd": None},
    ]
    for columns in (("s", "i", "d", "b"), ("s", "nested"), ("i", "odd")):
        table = pa.Table.from_pylist([{name: row[name] for name in columns} for row in rows])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        assert [json.loads(record) for record in _records(ARROW, sink.getvalue().to_pybytes())] == table.to_pylist()
