"""Where rows are posted: in which shapes, and what is told of a port that somebody else has."""

from __future__ import annotations

import json
import logging
import socket
import time
import urllib.error
import urllib.request
from contextlib import closing
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import ValidationError

from api.problems import Problem
from boreal.model.schema import Schema
from boreal.query.spec import Stream
from formats.record_parsing import RecordShape, read_records
from services.source.options import SourceOptions
from services.source.post_box import PostBox
from services.source.spool import SpoolFull
from services.source.web import ARROW, LARGEST_BODY, BodyError, WebServer, create_app, read_body
from services.stack.servers import free_port

TOKEN = "the token of the source"


def test_posted_numbers_keep_their_digits() -> None:
    shape = RecordShape.of(Stream.model_validate({"time": "at", "schema": {"d": "decimal(38, 3)", "s": "string"}}))
    row = '{"at": 1, "d": 12345678901234567890.123, "s": "],[ \\" é"}'
    for body in (row, f"[{row}]", f" [ {row} , {row} ]\n", "[]"):
        accepted = read_body(shape, "application/json", body.encode()).accepted
        assert accepted == [row.encode()] * body.count("at")
        assert set(read_records(shape, accepted).values[0].to_pylist()) <= {Decimal("12345678901234567890.123")}
    for body in (f"[{row}", f"{row}]", f"[{row},]", ""):
        with pytest.raises(BodyError, match="cannot be read"):
            read_body(shape, "application/json", body.encode())


def test_rows_are_checked_without_the_keys_and_time_stamps_that_they_will_get() -> None:
    schema = {"at": {"type": "timestamp", "from": "timestamp"}, "k": {"type": "string", "from": "key"}, "n": "int"}
    shape = RecordShape.of(Stream.model_validate({"time": "at", "schema": schema}))
    rows = read_body(shape, "application/json", b'[{"n": 1}, {"n": "x"}]')
    assert rows.accepted == [b'{"n": 1}'] and rows.reasons == {1: "column n: 'x' is not an int"}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("n", pa.int64())])) as writer:
        writer.write_batch(pa.record_batch({"n": [1, 2]}))
    assert read_body(shape, ARROW, sink.getvalue().to_pybytes()).accepted == [b'{"n":1}', b'{"n":2}']


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

    def post(path: str, token: str = TOKEN) -> tuple[int, dict[str, object]]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", b'{"at": 1, "n": 2}', headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    with closing(WebServer(create_app(cast(PostBox, box), shape, lambda: ["q"], "jfk", TOKEN), "127.0.0.1", port)) as server:
        while not server._server.started:
            time.sleep(0.01)
        assert post("/q/jfk/tuples") == (202, {"accepted": 1, "refused": 0, "durable": "kafka"})
        status, answer = post("/q/lga/tuples")
        for wrong in ("", "another", TOKEN.upper()):
            refused, why = post("/q/jfk/tuples", wrong)
            assert refused == 401 and "BOREAL_HTTP_TOKEN" in str(why["fix"])
    assert status == 404 and "/q/jfk/tuples" in str(answer["fix"])
    assert len(taken) == 1


class Full:
    """A post box that takes nothing."""

    def post(self, records: list[bytes]) -> bool:
        raise SpoolFull(9)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "field"),
    [
        ("POST", "/q/jfk/tuples", b"{", 422, "body"),
        ("POST", "/q/jfk/tuples", b"[" * 100_000, 422, "body"),
        ("POST", "/q/jfk/tuples", b" " * (LARGEST_BODY + 1), 413, "body"),
        ("POST", "/q/jfk/tuples", b'{"at": 1, "n": 2}', 503, "body"),
        ("GET", "/q/jfk/tuples", b"", 405, "method"),
        ("POST", "/q/lga/tuples", b"{}", 404, "path"),
        ("POST", "/other/jfk/tuples", b"[{}]", 404, "path"),
    ],
)
def test_each_refusal_is_a_problem_document(method: str, path: str, body: bytes, status: int, field: str) -> None:
    app = create_app(cast(PostBox, Full()), RecordShape("at", "ms", Schema.of({"n": "int"})), lambda: ["q"], "jfk", TOKEN)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    answer = TestClient(app, headers=headers).request(method, path, content=body)
    said = Problem.model_validate(answer.json())
    assert (answer.status_code, said.status, said.field) == (status, status, field) and said.detail and said.fix
    assert answer.headers["content-type"] == "application/problem+json"
    assert ("retry-after" in answer.headers) == (status == 503) and ("allow" in answer.headers) == (status == 405)


def test_only_callers_on_this_machine_may_be_listened_to() -> None:
    assert [SourceOptions(http_host=host).http_host for host in ("localhost", "::1")] == ["localhost", "::1"]
    for host in ("0.0.0.0", "::", "example.com"):
        with pytest.raises(ValidationError, match=r"is not a loopback address; write 127\.0\.0\.1"):
            SourceOptions(http_host=host)


def test_nanoseconds_are_taken_as_microseconds() -> None:
    at = pa.array([1_000_000_001_999, None], pa.timestamp("ns", "UTC"))
    table = pa.table({"at": at, "landed": at.cast(pa.timestamp("ns")), "n": [1, 2]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    rows = read_body(RecordShape("at", "ms", Schema.of({"n": "int"})), ARROW, sink.getvalue().to_pybytes())
    [first] = map(json.loads, rows.accepted)
    assert rows.reasons == {1: "column at: no time"}
    assert first == {"at": "1970-01-01T00:16:40.000001Z", "landed": "1970-01-01T00:16:40.000001Z", "n": 1}


def test_an_arrow_stream_is_the_rows_that_it_holds_also_where_a_column_has_no_quick_text() -> None:
    values: list[dict[str, Any]] = [
        {"at": 1, "s": 'a"b\n\u00e9', "i": -1, "d": 1.5, "b": True, "nested": {"x": [1]}, "odd": float("inf")},
        {"at": 2, "s": None, "i": None, "d": None, "b": None, "nested": None, "odd": None},
    ]
    for columns in (("at", "s", "i", "d", "b"), ("at", "s", "nested"), ("at", "i", "odd")):
        table = pa.Table.from_pylist([{name: row[name] for name in columns} for row in values])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        rows = read_body(RecordShape("at", "ms", Schema.of({})), ARROW, sink.getvalue().to_pybytes())
        assert [json.loads(record) for record in rows.accepted] == table.to_pylist()


COLUMNS = [
    pa.array(["5", "true", None]), pa.array([0, 1, None], pa.int32()), pa.array([2**62, -(2**62), 5]),
    pa.array([0.5, 1.0, None]), pa.array([5.0, -0.0, 2.0]), pa.array([True, False, None]), pa.array([None] * 3),
    pa.array([0, 10**15, None], pa.timestamp("us")), pa.array([0, 10**18, 1], pa.timestamp("ns", "Europe/Berlin")),
    pa.array([1, 2, 3], pa.uint8()),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["string", "int", "double", "bool", "timestamp"])
def test_what_columns_are_refused_does_not_depend_on_how_they_are_sent(kind: str) -> None:
    """A column of an attribute's own type is not written as text to be checked, and yet every row fares as its text does."""
    shape = RecordShape("at", "ms", Schema.of({"x": kind}))
    for column in COLUMNS:
        table = pa.table({"at": pa.array([1, 2, 3]), "x": column})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        rows = read_body(shape, ARROW, sink.getvalue().to_pybytes())
        lone = [read_records(shape, [record]) for record in rows.accepted]
        assert not any(found.reasons for found in lone), (kind, column)
        assert len(rows.accepted) + len(rows.reasons) == 3
