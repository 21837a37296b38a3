"""Posting rows over HTTP: POST /QUERY/STREAM/tuples, as JSON (an object or a list), JSON lines, or an Arrow stream.

    202 {"accepted": 998, "refused": 2, "reasons": [{"row": 17, "reason": "..."}], "durable": "kafka" | "spool"}

once the accepted rows outlast a crash. Refused are rows that are no tuples of the stream; whether a row is late is judged
when the source takes it, and shows in the dead letters. Without an answer a row may have been taken or not.

The path names the stream since all sources of a supervisor are told the same port, which the first of them gets: rows of
another stream may well have the same shape.
"""

from __future__ import annotations

import io
import json
import logging
import threading
from typing import Any

import pyarrow as pa
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from kafka.errors import KafkaError

from formats.record_parsing import RecordShape, read_records
from services.source.post import PostBox
from services.source.spool import SpoolFull

LARGEST_BODY = 16 << 20
LARGEST_RECORD = 900_000
"""In bytes: a broker's usual bound, less what a record needs besides."""
MOST_REASONS = 100
ARROW = "application/vnd.apache.arrow.stream"
JSON_LINES = ("application/x-ndjson", "application/jsonl", "application/json-lines")

_logger = logging.getLogger("boreal.source")


def create_app(box: PostBox, shape: RecordShape, query: str, stream: str) -> FastAPI:
    """The application that posts rows of this stream, which have this shape, to `box`."""
    app = FastAPI(title="boreal source", docs_url=None, redoc_url=None)
    path = f"/{query}/{stream}/tuples"

    @app.exception_handler(404)
    async def refuse(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": f"nothing is taken at {request.url.path}: this source takes rows at {path}"}, 404)

    @app.post(path, status_code=202)
    async def post_tuples(request: Request) -> JSONResponse:
        body = await _read_body(request)
        kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        status, answer = await run_in_threadpool(_post, box, shape, kind, body)
        return JSONResponse(answer, status)

    return app


async def _read_body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_BODY:
            raise HTTPException(413, f"a post may have {LARGEST_BODY} bytes at most: send the rows in several")
    return body


def _post(box: PostBox, shape: RecordShape, kind: str, body: bytes) -> tuple[int, dict[str, Any]]:
    try:
        records = _records(kind, body)
    except (ValueError, RecursionError, pa.ArrowException) as error:
        return 400, {"error": f"the body cannot be read: {error}"}
    reasons = read_records(shape, records).reasons
    too_large = f"more than {LARGEST_RECORD} bytes"
    reasons.update({row: too_large for row, record in enumerate(records) if len(record) > LARGEST_RECORD})
    accepted = [record for row, record in enumerate(records) if row not in reasons]
    answer: dict[str, Any] = {"accepted": len(accepted), "refused": len(reasons)}
    if reasons:
        answer["reasons"] = [{"row": row, "reason": reasons[row]} for row in sorted(reasons)[:MOST_REASONS]]
    if accepted:
        try:
            answer["durable"] = "kafka" if box.post(accepted) else "spool"
        except (SpoolFull, OSError, KafkaError) as error:
            return 503, {"error": str(error)}
    return 202, answer


def _records(kind: str, body: bytes) -> list[bytes]:
    """The body as JSON records, one a row; whether each is a tuple is not judged here."""
    if kind in JSON_LINES:
        body.decode()
        return [line for line in body.splitlines() if line.strip()]
    if kind == ARROW:
        with pa.ipc.open_stream(io.BytesIO(body)) as reader:
            return [_dump(row) for row in _in_microseconds(reader.read_all()).to_pylist()]
    found = json.loads(body)
    return [_dump(row) for row in (found if isinstance(found, list) else [found])]


def _in_microseconds(table: pa.Table) -> pa.Table:
    """Python has no finer times, and pyarrow none for them without pandas."""
    fine = [pa.types.is_timestamp(field.type) and field.type.unit == "ns" for field in table.schema]
    fields = [
        field.with_type(pa.timestamp("us", field.type.tz)) if is_fine else field
        for field, is_fine in zip(table.schema, fine, strict=True)
    ]
    return table.cast(pa.schema(fields), safe=False)


def _dump(row: object) -> bytes:
    return json.dumps(row, default=_plain).encode()


def _plain(value: Any) -> str:
    """What JSON has no value for, as text: times in ISO 8601."""
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


class WebServer:
    """Serves an application in a thread of its own. Where the port is taken it says so, and the source goes on without."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        self._server = uvicorn.Server(uvicorn.Config(app, host=host, port=port, log_level="warning", lifespan="off"))
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._server.run()
        except SystemExit:  # how it says that it cannot listen, having told why
            address = f"{self._server.config.host}:{self._server.config.port}"
            _logger.error("BOREAL_HTTP_PORT: nothing can be posted at %s; give this source a port that is free", address)

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=3)
