"""`ApiClient` and `AsyncApiClient`: boreal's REST API from Python, with the standard library alone.

    with ApiClient("http://127.0.0.1:8080", token) as api:
        api.change("departures", delay_threshold="1s")
        for event in api.output("departures", view="all"):
            ...
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from boreal.model.errors import BorealError

Json = dict[str, Any]
Result = TypeVar("Result")
View = Literal["stable", "all"]

JSON_LINES = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"

TIMEOUT_S = 60.0
SILENCE_S = 45.0
"""A stream of events that brings nothing for so long, not even a keep-alive line, is opened again."""
_RETRY_S = 1.0


@dataclass
class ApiError(BorealError):
    """A request that the API has refused, by its problem document."""

    status: int
    """The HTTP status."""
    detail: str
    """What is wrong."""
    field: str | None = None
    """The field that is wrong."""
    value: object = None
    """Its value."""
    fix: str | None = None
    """What to send instead."""
    revision: int | None = None
    """With 412: the revision that the query has."""

    def __str__(self) -> str:
        return f"{self.detail} ({self.status}); {self.fix}" if self.fix else f"{self.detail} ({self.status})"


@dataclass(frozen=True, slots=True)
class Event:
    """A server-sent event."""

    id: str
    """Its id, to go on after it; '' for a gap."""
    type: str
    """`stable`, `tentative`, `undo`, `boundary`, `rec_done`, or `gap`: what followed the last id is no longer kept."""
    data: Json = field(default_factory=dict)
    """The row, or the record as in changes.jsonl."""


class ApiClient:
    """Calls the API at an address, such as `api` of `boreal status --json`. token: `token` there, or one of `boreal token`.

    Methods raise ApiError for what is refused, and OSError while the API cannot be reached. if_match: the revision that the
    query must have; ApiError with status 412 if it has another.
    """

    def __init__(
        self, address: str, token: str, *, timeout_s: float = TIMEOUT_S, context: ssl.SSLContext | None = None
    ) -> None:
        """context: for HTTPS with an authority of your own."""
        self._address = address.rstrip("/")
        self._token = token
        self._timeout_s = timeout_s
        self._context = context
        self._is_closed = False

    def close(self) -> None:
        """End the iterations of `output` at their next event or keep-alive line."""
        self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # Queries

    def queries(self, *, status: bool = False) -> list[Json]:
        """All queries, in order of their names. status: with the status of each."""
        found: list[Json] = []
        after: str | None = None
        while True:
            page = self.call("GET", "/queries", params={"expand": "status" if status else None, "after": after})
            found += page["queries"]
            after = page["next"]
            if after is None:
                return found

    def overview(self, *, limit: int | None = None) -> Json:
        """The queries, a line each: `queries`, at most `limit` of them, and how many there are, `total`."""
        found: Json = self.call("GET", "/overview", params={"limit": limit})
        return found

    def query(self, name: str, *, min_revision: int | None = None) -> Json:
        """A query: what is in force. min_revision: as for `status`, here and below."""
        found: Json = self.call("GET", _path(name), params={"min_revision": min_revision})
        return found

    def put(self, spec: Mapping[str, Any], *, if_match: int | None = None) -> Json:
        """Create a query, or replace it. spec: in the shape of the query file."""
        found: Json = self.call("PUT", _path(str(spec["name"])), spec, if_match=if_match)
        return found

    def change(self, name: str, *, if_match: int | None = None, **fields: Any) -> Json:
        """Change some fields, such as `delay_threshold="1s"`. Returns what is in force."""
        found: Json = self.call("PATCH", _path(name), fields, if_match=if_match)
        return found

    def validate(self, spec: Mapping[str, Any], *, start: str = "earliest") -> Json:
        """Whether a query is valid, and what it would change of the one that runs, without doing it. start: as for `evolve`."""
        found: Json = self.call("POST", "/validate", spec, params={"from": start})
        return found

    def evolution(self, name: str) -> Json | None:
        """How the change of a query to another version gets on; None where it has one version only."""
        found: Json | None = self.call("GET", f"{_path(name)}/evolution")
        return found

    def evolve(self, spec: Mapping[str, Any], *, start: str = "earliest", if_match: int | None = None) -> Json:
        """Build another version of a running query beside it, which takes over its outputs once it has caught up. start: from
        where it reads the topics of its streams: `earliest`, `latest`, or the time from which on records were written; or
        `state`: it reads what the running version keeps (on a stack)."""
        path = f"{_path(str(spec['name']))}/evolution"
        found: Json = self.call("POST", path, spec, params={"from": start}, if_match=if_match)
        return found

    def roll_back(self, name: str, *, if_match: int | None = None) -> Json:
        """Let the version that was in charge before take over again; give up one that never was."""
        found: Json = self.call("POST", f"{_path(name)}/evolution/rollback", if_match=if_match)
        return found

    def settle(self, name: str, *, if_match: int | None = None) -> Json:
        """Delete the version that was in charge before."""
        found: Json = self.call("POST", f"{_path(name)}/evolution/settle", if_match=if_match)
        return found

    def delete(self, name: str, *, if_match: int | None = None) -> None:
        self.call("DELETE", _path(name), if_match=if_match)

    def pause(self, name: str, *, if_match: int | None = None) -> Json:
        found: Json = self.call("PUT", f"{_path(name)}/pause", if_match=if_match)
        return found

    def resume(self, name: str, *, if_match: int | None = None) -> Json:
        found: Json = self.call("PUT", f"{_path(name)}/resume", if_match=if_match)
        return found

    def restart(self, name: str, *, only_failed: bool = False, if_match: int | None = None) -> Json:
        """Restart the replicas of a query in turn. only_failed: nothing happens while all of them work."""
        path, params = f"{_path(name)}/restart", {"only_failed": "true" if only_failed else None}
        found: Json = self.call("POST", path, params=params, if_match=if_match)
        return found

    def status(self, name: str, *, min_revision: int | None = None) -> Json:
        """How a query is. min_revision: wait a few seconds until this revision is known."""
        found: Json = self.call("GET", f"{_path(name)}/status", params={"min_revision": min_revision})
        return found

    def liveness(self, name: str, *, min_revision: int | None = None) -> Json:
        """Whether a query runs as its newest revision says."""
        found: Json = self.call("GET", f"{_path(name)}/liveness", params={"min_revision": min_revision})
        return found

    def streams(self) -> list[Json]:
        """What the queries read: where the records are, and which streams of which queries read them."""
        found: list[Json] = self.call("GET", "/streams")["streams"]
        return found

    def failures(self, name: str, *, limit: int = 50, after: str | None = None) -> Json:
        """A page of the failures of a query, the newest first. after: `next` of the page before."""
        found: Json = self.call("GET", f"{_path(name)}/failures", params={"limit": limit, "after": after})
        return found

    def reconciliations(self, name: str, *, failure: str | None = None, limit: int = 50, after: int | None = None) -> Json:
        """A page of the corrections of a query's instances, the newest first. after: `next` of the page before."""
        params = {"failure": failure, "limit": limit, "after": after}
        found: Json = self.call("GET", f"{_path(name)}/reconciliations", params=params)
        return found

    def what_if(self, name: str, *, since_ms: float | None = None) -> Json:
        """What each X would have shown of the recorded failures, at most."""
        found: Json = self.call("GET", f"{_path(name)}/what-if", params={"since_ms": since_ms})
        return found

    def slo(self, name: str) -> Json:
        """How a query keeps its objective, and what is left of its budgets."""
        found: Json = self.call("GET", f"{_path(name)}/slo")
        return found

    def failure(self, name: str, id: str) -> Json:
        """A failure, with its phases, its cost and its events."""
        found: Json = self.call("GET", f"{_path(name)}/failures/{urllib.parse.quote(id, safe='')}")
        return found

    def events(
        self, *, query: str | None = None, kinds: Collection[str] = (), limit: int = 100, after: int | None = None
    ) -> Json:
        """A page of what happened, the newest first. after: `next` of the page before."""
        params = {"query": query, "kind": list(kinds) or None, "limit": limit, "after": after}
        found: Json = self.call("GET", "/events", params=params)
        return found

    def dead_letters(
        self,
        name: str,
        *,
        stream: str | None = None,
        reason: str | None = None,
        since_ms: float | None = None,
        limit: int = 50,
    ) -> Json:
        """The newest records that were refused. reason: only those whose reason holds this text."""
        params = {"stream": stream, "reason": reason, "since_ms": since_ms, "limit": limit}
        found: Json = self.call("GET", f"{_path(name)}/dead-letters", params=params)
        return found

    def replay_dead_letters(self, name: str, request: Mapping[str, Any]) -> Json:
        """Put records that were refused back into their streams, each once at most. request: `stream`, `reason`, `since_ms` and
        `limit`, as docs/rest.md says; `{}` for all."""
        found: Json = self.call("POST", f"{_path(name)}/dead-letters/replay", request)
        return found

    def plan(self, name: str, *, min_revision: int | None = None) -> Json:
        """The parts of a query, and the durations that follow from it."""
        found: Json = self.call("GET", f"{_path(name)}/plan", params={"min_revision": min_revision})
        return found

    def explain_delay(self, name: str, *, min_revision: int | None = None) -> Json:
        """Where X goes, and what results wait for."""
        found: Json = self.call("GET", f"{_path(name)}/explain-delay", params={"min_revision": min_revision})
        return found

    def inputs(self, name: str, *, min_revision: int | None = None) -> list[Json]:
        """The streams of a query, and how they are."""
        found: list[Json] = self.call("GET", f"{_path(name)}/inputs", params={"min_revision": min_revision})
        return found

    def replicas(self, name: str, *, min_revision: int | None = None) -> list[Json]:
        """The instances of a query, and how they are."""
        found: list[Json] = self.call("GET", f"{_path(name)}/replicas", params={"min_revision": min_revision})
        return found

    def workers(self) -> list[Json]:
        """The workers that have joined a site, with the roles that each runs."""
        found: list[Json] = self.call("GET", "/workers")["workers"]
        return found

    def config(self) -> Json:
        """The effective settings, with secrets masked; for admins."""
        found: Json = self.call("GET", "/config")
        return found

    # Comparisons

    def compare(self, request: Mapping[str, Any]) -> Json:
        """Begin a comparison. request: `query`, `sources`, and what is to be compared, as docs/rest.md says; with an `id`, the
        call may be repeated. Returns at once: `comparison` says how far it is."""
        found: Json = self.call("POST", "/comparisons", request)
        return found

    def replay(self, name: str, failure: str, request: Mapping[str, Any]) -> Json:
        """Begin a replay of a failure that is over, under each X, mode and policy of the request, as docs/rest.md says. It is a
        comparison: `comparison` says how far it is."""
        path = f"{_path(name)}/failures/{urllib.parse.quote(failure, safe='')}/replay"
        found: Json = self.call("POST", path, request)
        return found

    def verify(self, request: Mapping[str, Any]) -> Json:
        """Begin a verification. request: `query`, `sources` and `faults`, as docs/rest.md says. Returns at once: `verification`
        says how far it is."""
        found: Json = self.call("POST", "/verifications", request)
        return found

    def verify_query(self, name: str, request: Mapping[str, Any]) -> Json:
        """Begin a verification of the results that a query has given. request: `since_ms` and `until_ms`, as docs/rest.md says;
        `{}` for the last minute."""
        found: Json = self.call("POST", f"{_path(name)}/verifications", request)
        return found

    def begin_backfill(self, name: str, request: Mapping[str, Any]) -> Json:
        """Begin a backfill of a query. request: as for `verify_query`. Returns at once: `backfill` says how far it is."""
        found: Json = self.call("POST", f"{_path(name)}/backfills", request)
        return found

    def backfill(self, id: str) -> Json:
        """A backfill, with its `state`, its `progress` and, once it is done, its `result`."""
        found: Json = self.call("GET", _job_path("backfills", id))
        return found

    def backfill_rows(self, id: str) -> Iterator[Json]:
        """The rows of a backfill that is done, in the order of the stable output."""
        with self._open("GET", f"{_job_path('backfills', id)}/rows", {}, None, {}, self._timeout_s) as answer:
            for line in answer:
                yield json.loads(line)

    def verification(self, id: str) -> Json:
        """A verification, with its `state`, its `progress` and, once it is done, its `result`."""
        found: Json = self.call("GET", _job_path("verifications", id))
        return found

    def comparison(self, id: str) -> Json:
        """A comparison, with its `state`, its `progress` and, once it is done, its `result`."""
        found: Json = self.call("GET", _job_path("comparisons", id))
        return found

    def comparisons(self, *, limit: int = 50, after: str | None = None) -> Json:
        """A page of the comparisons, the newest first. after: `next` of the page before."""
        found: Json = self.call("GET", "/comparisons", params={"limit": limit, "after": after})
        return found

    def cancel_comparison(self, id: str) -> Json:
        found: Json = self.call("POST", f"{_job_path('comparisons', id)}/cancel")
        return found

    def delete_comparison(self, id: str) -> None:
        self.call("DELETE", _job_path("comparisons", id))

    def verifications(self, *, limit: int = 50, after: str | None = None) -> Json:
        """A page of the verifications, the newest first. after: `next` of the page before."""
        found: Json = self.call("GET", "/verifications", params={"limit": limit, "after": after})
        return found

    def cancel_verification(self, id: str) -> Json:
        found: Json = self.call("POST", f"{_job_path('verifications', id)}/cancel")
        return found

    def delete_verification(self, id: str) -> None:
        self.call("DELETE", _job_path("verifications", id))

    def backfills(self, *, limit: int = 50, after: str | None = None) -> Json:
        """A page of the backfills, the newest first. after: `next` of the page before."""
        found: Json = self.call("GET", "/backfills", params={"limit": limit, "after": after})
        return found

    def cancel_backfill(self, id: str) -> Json:
        found: Json = self.call("POST", f"{_job_path('backfills', id)}/cancel")
        return found

    def delete_backfill(self, id: str) -> None:
        self.call("DELETE", _job_path("backfills", id))

    # Rows and results

    def append(self, stream: str, rows: Sequence[Mapping[str, Any]]) -> Json:
        """Give rows to a stream, by its name or as QUERY.STREAM. Returns when those that are accepted survive a crash."""
        found: Json = self.call("POST", f"/streams/{urllib.parse.quote(stream, safe='')}/tuples", list(rows))
        return found

    def append_lines(self, stream: str, lines: bytes) -> Json:
        """As `append`, of JSON lines."""
        return self._append(stream, lines, JSON_LINES)

    def append_arrow(self, stream: str, rows: bytes) -> Json:
        """As `append`, of an Arrow stream: the bytes that `pyarrow.ipc.new_stream` writes. The fastest way."""
        return self._append(stream, rows, ARROW)

    def _append(self, stream: str, body: bytes, kind: str) -> Json:
        path = f"/streams/{urllib.parse.quote(stream, safe='')}/tuples"
        with self._open("POST", path, {}, body, {"Content-Type": kind}, self._timeout_s) as answer:
            found: Json = json.loads(answer.read())
            return found

    def output(self, name: str, *, view: View = "stable", after: str | None = None, last: int | None = None) -> Iterator[Event]:
        """The results of a query, without end: it goes on by itself after an outage, where it was. after: the id of the last
        event that is known. last: begin with at most so many old events. ApiError if the query is deleted."""
        return self._follow(f"{_path(name)}/output", {"from": view}, after, {"last": last})

    def follow_events(
        self, *, query: str | None = None, kinds: Collection[str] = (), failure: str | None = None, after: int | None = None
    ) -> Iterator[Event]:
        """What happens, without end; like `output` it goes on after an outage. The type of an event is its kind. after: the id
        of the last one that is known; by default those that are to come."""
        params = {"query": query, "kind": list(kinds) or None, "failure": failure}
        return self._follow("/events/stream", params, None if after is None else str(after), {})

    def _follow(
        self, path: str, params: Mapping[str, object], after: str | None, first: Mapping[str, object]
    ) -> Iterator[Event]:
        """The events of a stream, over one connection after the other. first: parameters that only say where to begin."""
        while not self._is_closed:
            asked = {**params, **(first if after is None else {})}
            headers = {"Accept": "text/event-stream", **({"Last-Event-ID": after} if after else {})}
            try:
                with self._open("GET", path, asked, None, headers, SILENCE_S) as answer:
                    for event in _events(answer, lambda: self._is_closed):
                        after = event.id or after
                        yield event
            except (OSError, HTTPException):
                pass
            if not self._is_closed:
                time.sleep(_RETRY_S)

    def chaos(self, fault: str) -> Json:
        """Break something, such as "cut jfk for 5s", where the installation allows it."""
        found: Json = self.call("POST", "/chaos", {"fault": fault})
        return found

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        params: Mapping[str, object] | None = None,
        if_match: int | None = None,
    ) -> Any:
        """Any call: the answer as parsed from JSON. path: below /api/v1."""
        headers = {} if if_match is None else {"If-Match": f'"{if_match}"'}
        with self._open(method, path, params or {}, body, headers, self._timeout_s) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def _open(
        self, method: str, path: str, params: Mapping[str, object], body: object, headers: Mapping[str, str], timeout_s: float
    ) -> HTTPResponse:
        given = {name: value for name, value in params.items() if value is not None}
        query = f"?{urllib.parse.urlencode(given, doseq=True)}" if given else ""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._address}/api/v1{path}{query}", data=data, method=method)
        for name, value in {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json", **headers}.items():
            request.add_header(name, value)
        try:
            answer: HTTPResponse = urllib.request.urlopen(request, timeout=timeout_s, context=self._context)
        except urllib.error.HTTPError as refusal:
            with refusal:
                raise _error_of(refusal.code, refusal.read()) from None
        return answer


class AsyncApiClient:
    """The same for asyncio: each call of `api` runs in a thread. `api` has all methods; `output` and `follow_events` are async
    iterators."""

    def __init__(
        self, address: str, token: str, *, timeout_s: float = TIMEOUT_S, context: ssl.SSLContext | None = None
    ) -> None:
        self.api = ApiClient(address, token, timeout_s=timeout_s, context=context)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.api.close()

    async def run(self, method: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
        """A call in a thread: `await client.run(client.api.change, "departures", delay_threshold="1s")`."""
        return await asyncio.to_thread(method, *arguments, **options)

    async def output(
        self, name: str, *, view: View = "stable", after: str | None = None, last: int | None = None
    ) -> AsyncIterator[Event]:
        """As `ApiClient.output`. Each step is one in a thread."""
        async for event in self._steps(self.api.output(name, view=view, after=after, last=last)):
            yield event

    async def follow_events(
        self, *, query: str | None = None, kinds: Collection[str] = (), failure: str | None = None, after: int | None = None
    ) -> AsyncIterator[Event]:
        """As `ApiClient.follow_events`. Each step is one in a thread."""
        async for event in self._steps(self.api.follow_events(query=query, kinds=kinds, failure=failure, after=after)):
            yield event

    async def _steps(self, events: Iterator[Event]) -> AsyncIterator[Event]:
        end = object()
        while (event := await asyncio.to_thread(next, events, end)) is not end:
            assert isinstance(event, Event)
            yield event


def _path(name: str) -> str:
    return f"/queries/{urllib.parse.quote(name, safe='')}"


def _job_path(kind: str, id: str) -> str:
    return f"/{kind}/{urllib.parse.quote(id, safe='')}"


def _error_of(status: int, body: bytes) -> ApiError:
    try:
        said = json.loads(body)
        return ApiError(status, said["detail"], said["field"], said["value"], said["fix"], said.get("revision"))
    except (ValueError, KeyError, TypeError):
        return ApiError(status, body[:200].decode(errors="replace") or "no answer")


def _events(lines: Iterator[bytes] | HTTPResponse, is_closed: Callable[[], bool]) -> Iterator[Event]:
    """The events of a stream, until it ends. Lines that begin with a colon are keep-alives."""
    fields: dict[str, str] = {}
    for line in lines:
        if is_closed():
            return
        name, _, value = line.decode().rstrip("\r\n").partition(":")
        if name:
            fields[name] = value.removeprefix(" ")
        elif "event" in fields:
            yield Event(fields.get("id", ""), fields["event"], json.loads(fields.get("data", "{}")))
            fields = {}
        else:
            fields = {}
