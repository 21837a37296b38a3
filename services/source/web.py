"""Posting rows over HTTP: POST /QUERY/STREAM/tuples, as JSON (an object or a list), JSON lines, or an Arrow stream, with the
header `Authorization: Bearer TOKEN`, TOKEN being that of BOREAL_HTTP_TOKEN:

    202 {"accepted": 998, "refused": 2, "reasons": [{"row": 17, "reason": "..."}], "durable": "kafka" | "spool"}

when the accepted rows will survive a crash. Rows that are not tuples of the stream are refused. Late rows are found only when
the source reads them, and become dead letters. If no answer arrives, a row may have been accepted or not.

All other answers are problem documents, as the API's are. This is for producers beside the source, whose rows are to be taken
while Kafka is out of reach; all others post to the API.

The path names the stream, because all sources of a supervisor have the same port in their settings, and the first to start
gets it: rows of another stream may well have the same columns.
"""

from __future__ import annotations

import hmac
import io
import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import uvicorn
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from kafka.errors import KafkaError
from starlette.exceptions import HTTPException

from boreal.model.errors import BorealError
from boreal.model.problems import MEDIA_TYPE, problem_document
from boreal.model.schema import Type
from formats.json_text import table_texts
from formats.record_parsing import RecordShape, read_all, read_records, whole
from services.source.post_box import PostBox
from services.source.spool import SpoolFull

LARGEST_BODY = 16 << 20
LARGEST_RECORD = 900_000
"""In bytes: the usual limit of a broker, less a record's overhead."""
MOST_REASONS = 100
ARROW = "application/vnd.apache.arrow.stream"
JSON_LINES = ("application/x-ndjson", "application/jsonl", "application/json-lines")
BODY_FIX = f"send JSON, JSON lines as {JSON_LINES[0]}, or an Arrow stream as {ARROW}"
RETRY_AFTER_S = 1

_logger = logging.getLogger("boreal.source")


class BodyError(BorealError):
    """A body that is not what its content type says."""


def create_app(
    box: PostBox, shape: RecordShape, readers: Callable[[], Sequence[str]], stream: str, token: str
) -> FastAPI:
    """The application that posts rows of one stream to `box`; shape: the columns of the stream's records. readers: the queries
    that read it. token: what each post must have, so that neither a page in a browser nor another user of the machine can
    post."""
    app = FastAPI(title="boreal source", docs_url=None, redoc_url=None)

    @app.exception_handler(HTTPException)
    async def refuse(request: Request, error: HTTPException) -> JSONResponse:
        path = f"/{next(iter(readers()), 'QUERY')}/{stream}/tuples"
        asked = {405: ("method", request.method)}.get(error.status_code, ("path", request.url.path))
        detail = f"this source takes rows by POST at {path}, and not {request.method} {request.url.path}"
        return _problem(error.status_code, detail, *asked, f"POST them to {path}", error.headers)

    @app.exception_handler(RecursionError)
    async def refuse_depth(request: Request, error: RecursionError) -> JSONResponse:
        return _problem(422, "the body is nested too deeply", "body", None, "send a body with fewer levels")

    @app.exception_handler(Exception)
    async def fail(request: Request, error: Exception) -> JSONResponse:
        _logger.exception("a post to %s failed", request.url.path, exc_info=error)
        fix = "report it with the log of the source"
        return _problem(500, "this is an error of boreal itself; its log says more", None, None, fix)

    @app.post(f"/{{query}}/{stream}/tuples", status_code=202)
    async def post_tuples(query: str, request: Request) -> JSONResponse:
        if query not in readers():
            raise HTTPException(404)
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            fix = "send Authorization: Bearer TOKEN, with the token of BOREAL_HTTP_TOKEN"
            return _problem(401, "a token is needed", "Authorization", None, fix, {"WWW-Authenticate": "Bearer"})
        body = await _read_body(request)
        if body is None:
            detail = f"the body has more than {LARGEST_BODY} bytes"
            return _problem(413, detail, "body", None, "send the rows in several posts")
        kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        return await run_in_threadpool(_post, box, shape, kind, body)

    return app


async def _read_body(request: Request) -> bytes | None:
    """None if it is too long."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_BODY:
            return None
    return body


def _post(box: PostBox, shape: RecordShape, kind: str, body: bytes) -> JSONResponse:
    try:
        rows = read_body(shape, kind, body)
    except BodyError as error:
        return _problem(422, f"body: {error}", "body", None, BODY_FIX)
    answer: dict[str, Any] = {"accepted": len(rows.accepted), "refused": len(rows.reasons)}
    if rows.reasons:
        answer["reasons"] = rows.first_reasons
    if rows.accepted:
        try:
            answer["durable"] = "kafka" if box.post(rows.accepted) else "spool"
        except (SpoolFull, OSError, KafkaError) as error:
            again = {"Retry-After": str(RETRY_AFTER_S)}
            return _problem(503, str(error), "body", None, "send the rows again later, or fewer at once", again)
    return JSONResponse(answer, 202)


def _problem(
    status: int, detail: str, field: str | None, value: object, fix: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    content = problem_document(status, detail, field=field, value=value, fix=fix)
    return JSONResponse(content, status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


@dataclass(frozen=True, slots=True)
class PostedRows:
    """The rows of a body."""

    accepted: list[bytes]
    """The rows that are tuples of the stream, as JSON records."""
    reasons: dict[int, str]
    """Why each other row is refused, by its place in the body."""

    @property
    def first_reasons(self) -> list[dict[str, Any]]:
        """At most MOST_REASONS of the refused rows, with the reason of each, as the answer to a post shows them."""
        return [{"row": row, "reason": self.reasons[row]} for row in sorted(self.reasons)[:MOST_REASONS]]


def read_body(shape: RecordShape, kind: str, body: bytes) -> PostedRows:
    """Read and check the rows of a body. kind: its content type. BodyError if it cannot be read."""
    try:
        records, reasons = _read_arrow(shape, body) if kind == ARROW else _read_json(shape, kind, body)
    except (ValueError, RecursionError, pa.ArrowException) as error:
        raise BodyError(f"the body cannot be read: {error}") from None
    if max(map(len, records), default=0) > LARGEST_RECORD:
        too_large = f"more than {LARGEST_RECORD} bytes"
        reasons = {**reasons, **{row: too_large for row, record in enumerate(records) if len(record) > LARGEST_RECORD}}
    accepted = [record for row, record in enumerate(records) if row not in reasons] if reasons else records
    return PostedRows(accepted, reasons)


def _read_json(shape: RecordShape, kind: str, body: bytes) -> tuple[list[bytes], dict[int, str]]:
    if kind in JSON_LINES:
        body.decode()
        records = [line for line in body.splitlines() if line.strip()]
    else:
        records = _rows_of(body.decode(json.detect_encoding(body)))
    return records, read_records(shape, records).reasons


def _rows_of(text: str) -> list[bytes]:
    """The rows of a JSON value, which is one or an array of them, as they are written: a number that is parsed loses digits."""
    if not isinstance(json.loads(text), list):
        return [text.encode()]
    rows: list[bytes] = []
    at = text.index("[") + 1
    while text[at] != "]":
        if text[at] in " \t\r\n,":
            at += 1
            continue
        _, end = _DECODER.raw_decode(text, at)
        rows.append(text[at:end].encode())
        at = end
    return rows


def _read_arrow(shape: RecordShape, body: bytes) -> tuple[list[bytes], dict[int, str]]:
    with pa.ipc.open_stream(io.BytesIO(body)) as reader:
        table = reader.read_all()
    texts = table_texts(table)
    if texts is None:
        records = [_dump(row) for row in _in_microseconds(table).to_pylist()]
        return records, read_records(shape, records).reasons
    records = cast(list[bytes], texts.cast(pa.binary()).to_pylist())
    # Columns of their attributes' own types are converted by the same rules as texts, so their texts need not be read.
    if _has_own_types(shape, table.schema) and read_all(shape, whole(table, shape.wanted)) is not None:
        return records, {}
    return records, read_records(shape, records).reasons


_DECODER = json.JSONDecoder()
_OWN_TYPES: dict[Type, Callable[[pa.DataType], bool]] = {
    Type.STRING: pa.types.is_string,
    Type.INT: pa.types.is_signed_integer,
    Type.DOUBLE: pa.types.is_float64,
    Type.BOOL: pa.types.is_boolean,
    Type.DATE: pa.types.is_signed_integer,
    Type.TIMESTAMP: lambda found: pa.types.is_timestamp(found) or pa.types.is_signed_integer(found),
}


def _has_own_types(shape: RecordShape, columns: pa.Schema) -> bool:
    if shape.paths or shape.origins:
        return False
    wanted = [(shape.time, Type.TIMESTAMP), *shape.schema.columns]
    return all(name in columns.names and _is_own(kind, columns.field(name).type) for name, kind in wanted)


def _is_own(kind: Type, found: pa.DataType) -> bool:
    return pa.types.is_decimal(found) if kind.is_decimal else _OWN_TYPES[kind](found)


def _in_microseconds(table: pa.Table) -> pa.Table:
    """Nanosecond timestamps as microseconds: Python has no finer ones, and pyarrow converts them only with pandas."""
    fine = [pa.types.is_timestamp(field.type) and field.type.unit == "ns" for field in table.schema]
    fields = [
        field.with_type(pa.timestamp("us", field.type.tz)) if is_fine else field
        for field, is_fine in zip(table.schema, fine, strict=True)
    ]
    return table.cast(pa.schema(fields), safe=False)


def _dump(row: object) -> bytes:
    return json.dumps(row, default=_plain).encode()


def _plain(value: Any) -> str:
    """A value that JSON cannot represent, as text: times in ISO 8601."""
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


class WebServer:
    """Serves an application in a thread. If the port is taken it logs an error, and the source runs without HTTP."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        # log_config None: it logs as the process does.
        config = uvicorn.Config(app, host=host, port=port, log_level="warning", log_config=None, lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._server.run()
        except SystemExit:  # uvicorn has logged why it cannot listen, and then exits
            address = f"{self._server.config.host}:{self._server.config.port}"
            _logger.error("BOREAL_HTTP_PORT: rows cannot be posted at %s; choose a free port for this source", address)

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=3)
