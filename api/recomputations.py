"""What the recorded input of a query comes to without failures, as jobs: compared with the results that clients were given (a
verification), or kept as a file (a backfill).

The input is what sources logged within a span, as for a replay. Results count by their event time: from the first for which no
row is missing before the span, to the last that all streams have reached.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from api.comparisons import MOST_ROWS, Id, OnProgress
from api.installation import ConflictError, Installation, NotFoundError, OutputReader
from boreal.model.errors import UserError
from boreal.model.frames import INFINITY
from boreal.query.refusals import did_you_mean
from embedded.recording import Recording, RowsGoneError, Span, TooManyRowsError, exact_range, read_recording
from embedded.run import Run
from embedded.run_folder import write_whole
from embedded.session import RunOptions, replay_session
from embedded.verify import Difference, first_difference
from formats.json_text import moment, time_us

RECORDING = "recording"
"""The folder of a job that has its input."""
GIVEN = "given.jsonl"
"""The file of a job that has the rows that clients were given: a time, in microseconds, and a row in each line."""
ROWS = "rows.jsonl"
"""The file of a job that has its results, a row in each line."""

DEFAULT_SPAN_MS = 60_000
MOST_RECORDS = 2_000_000
"""So far back a query's output is read."""
CAUGHT_UP_WITHIN_S = 5.0
"""How long the stable output is waited for: it follows the input."""

_FIRST_LOOK = 4_096
_PAGE = 1_000
_LOOK_S = 0.2

EXAMPLE: dict[str, Any] = {"id": "last-minute"}


class RecordedRequest(BaseModel):
    """The input of a query that came within a span."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": EXAMPLE})

    id: Id | None = Field(default=None, description="The id of the job; by default one is made. The same id with the same "
        "request is the same job.")  # fmt: skip
    since_ms: float | None = Field(
        default=None,
        description="What came from then on, in milliseconds since 1970; null: a minute before `until_ms`.",
        ge=0,
        le=1e15,
    )
    until_ms: float | None = Field(default=None, description="What came until then; null: until now.", ge=0, le=1e15)

    def asked(self, query: str) -> dict[str, Any]:
        """What is asked for, without the id."""
        return {"query": query, **self.model_dump(exclude={"id"})}


@dataclass(frozen=True, slots=True)
class Recomputation:
    """The results of a query from `since` to before `until`, event times in microseconds, as they can be computed again."""

    spec: Mapping[str, Any]
    """The query."""
    bucket_us: int
    """The length of its buckets, in microseconds of event time."""
    recording: Recording
    """Its input."""
    since: int
    """The first event time (us)."""
    until: int
    """The event time after the last (us)."""

    def said(self) -> dict[str, Any]:
        """What a job has to know beside the recording; `saved` reads it."""
        return {"spec": self.spec, "bucket_us": self.bucket_us, "since": self.since, "until": self.until}


    def among(self, given: GivenRows) -> Recomputation:
        """Of that, what clients were given in full. ConflictError if that is nothing."""
        found = replace(self, since=max(self.since, given.since), until=min(self.until, given.until))
        if found.since >= found.until:
            problem = "has given no stable results of this span, or keeps them no longer"
            raise ConflictError("NAME", self.spec["name"], problem, "wait until it is stable, or choose another span")
        return found


def saved(folder: Path, request: Mapping[str, Any]) -> Recomputation:
    """That of a job: what the route has put into its request and its folder."""
    recording = read_recording(folder / RECORDING)
    return Recomputation(request["spec"], request["bucket_us"], recording, request["since"], request["until"])


def prepare(installation: Installation, name: str, request: RecordedRequest) -> Recomputation:
    """What can be computed of a span. NotFoundError, RowsGoneError, TooManyRowsError; ConflictError if that is nothing."""
    records = installation.queries()
    if name not in records:
        raise NotFoundError("NAME", name, "there is no such query", did_you_mean(name, records))
    span = _span(request, installation.freshness().as_of_ms)
    try:
        recording = installation.recorded(name, span, MOST_ROWS)
    except (RowsGoneError, TooManyRowsError) as error:
        raise replace(error, field="since_ms", value=span.begin / 1_000, fix="choose another span, or a shorter one") from None
    bucket_us = installation.layout(name).plan.bucket_us
    since, until = exact_range(recording, records[name].query, bucket_us, span)
    if since >= until:
        problem = "has no results that could be computed in full: its windows, or its streams, do not reach so far"
        raise ConflictError("NAME", name, problem, "choose a longer span, or wait until all streams go on")
    return Recomputation(records[name].spec, bucket_us, recording, since, until)


def _span(request: RecordedRequest, now_ms: float) -> Span:
    until_ms = now_ms if request.until_ms is None else request.until_ms
    if until_ms > now_ms:
        raise UserError("until_ms", until_ms, f"is later than now, {now_ms:.0f}", "leave it out for all until now")
    since_ms = until_ms - DEFAULT_SPAN_MS if request.since_ms is None else request.since_ms
    if since_ms >= until_ms:
        raise UserError("since_ms", since_ms, f"is not before {until_ms:.0f}", "choose an earlier time")
    return Span(round(since_ms * 1_000), round(until_ms * 1_000))


# What clients were given


@dataclass(frozen=True, slots=True)
class GivenRows:
    """Stable rows that clients were given, in order."""

    rows: Sequence[tuple[int, str]]
    """Their event times in microseconds, and the rows as JSON."""
    since: int
    """No row of this time or a later one is missing before them; INFINITY if there are none."""
    until: int
    """All rows before this time have been given."""


def read_given(installation: Installation, name: str, found: Recomputation) -> GivenRows:
    """The stable rows that clients were given within a range. UserError if they are too far back."""
    with closing(installation.output(name, "all")) as reader:
        count = _FIRST_LOOK
        while True:
            place = reader.newest(count)
            given = _read_on(reader, place, found)
            if given.since <= found.since or place is None:
                return given
            if count >= MOST_RECORDS:
                problem = f"lies more than {MOST_RECORDS:,} records of the output back"
                raise UserError("since_ms", found.recording.begin / 1_000, problem, "choose a later one")
            count *= 4


def _read_on(reader: OutputReader, place: str | None, found: Recomputation) -> GivenRows:
    rows: list[tuple[int, str]] = []
    since, until = INFINITY, 0
    deadline = time.monotonic() + CAUGHT_UP_WITHIN_S
    while until < found.until:
        page = reader.read(place, _PAGE)
        if page.events:
            deadline = time.monotonic() + CAUGHT_UP_WITHIN_S
        elif time.monotonic() > deadline:
            break
        elif page.next_id == place:
            time.sleep(_LOOK_S)
        place = page.next_id
        for event in page.events:
            match event.type:
                case "stable":
                    record = json.loads(event.data)
                    at = time_us(record["event_time"])
                    # Other rows of the first one's time may be before it.
                    since = min(since, at + (record["seq"] > 1))
                    if found.since <= at < found.until:
                        rows.append((at, json.dumps(record["data"])))
                case "boundary" if not (record := json.loads(event.data))["tentative"]:
                    until = time_us(record["through"])
                    since = min(since, until)
    return GivenRows(rows, since, until)


def save_given(given: GivenRows, folder: Path) -> None:
    """Write the rows to the folder of a job."""
    (folder / GIVEN).write_text("".join(f"[{at},{row}]\n" for at, row in given.rows), encoding="utf-8")


# The runs


def run_verification(
    found: Recomputation, folder: Path, scratch: Path, on_progress: OnProgress, show_rows: bool
) -> dict[str, Any]:
    """Compare what clients were given with what the recorded input comes to. UserError if there is nothing to compare.
    show_rows: whether the result may hold rows."""
    stable, is_stable = _run(found, scratch, on_progress)
    rows = map(json.loads, (folder / GIVEN).read_text(encoding="utf-8").splitlines())
    given = [json.dumps(row) for at, row in rows if found.since <= at < found.until]
    computed = [json.dumps(json.loads(line)) for line in stable]
    if not given and not computed:
        problem = f"has no stable row from {moment(found.since)} to {moment(found.until)}, so nothing was compared"
        raise UserError("NAME", found.spec["name"], problem, "choose a longer span")
    difference = first_difference(given, computed)
    return {
        **_shape(found),
        "faults": [],
        "holds": difference is None and is_stable,
        "same": difference is None,
        "rows": len(computed),
        "first_difference": difference and _told(difference, show_rows),
        "replay_differences": {},
        "is_stable": is_stable,
    }


def _told(difference: Difference, show_rows: bool) -> dict[str, Any]:
    rows = {"given": difference.left, "computed": difference.right} if show_rows else {}
    return {"line": difference.line, **rows}


def run_backfill(found: Recomputation, folder: Path, scratch: Path, on_progress: OnProgress) -> dict[str, Any]:
    """Keep what the recorded input comes to."""
    stable, _ = _run(found, scratch, on_progress)
    lines = [line + "\n" for line in stable]
    text = "".join(lines)
    write_whole(folder / ROWS, text)
    return {**_shape(found), "rows": len(lines), "bytes": len(text.encode())}


def _run(found: Recomputation, scratch: Path, on_progress: OnProgress) -> tuple[Iterator[str], bool]:
    """The stable rows of the range as lines of JSON; and whether all replicas ended stable."""
    total = max(found.recording.length_us // 1_000_000, 1)
    told = -1

    def watch(run: Run) -> None:
        nonlocal told
        seconds = min(run.world.now // 1_000_000, total)
        if seconds > told:
            told = seconds
            on_progress(seconds, total)

    session = replay_session(found.spec, found.recording, found.bucket_us, RunOptions(engine="native", seed=0))
    outcome = session.run(scratch, watch=watch)
    on_progress(total, total)
    return _within(found, scratch), outcome.is_stable


def _within(found: Recomputation, run: Path) -> Iterator[str]:
    changes, stable = ((run / name).open(encoding="utf-8") for name in ("changes.jsonl", "stable.jsonl"))
    with changes, stable:
        records = (record for record in map(json.loads, changes) if record["type"] == "stable")
        for record, line in zip(records, stable, strict=True):
            if found.since <= time_us(record["event_time"]) < found.until:
                yield line.rstrip("\n")


def _shape(found: Recomputation) -> dict[str, Any]:
    return {
        "query": found.spec["name"],
        "since": moment(found.since),
        "until": moment(found.until),
        "notes": list(found.recording.notes),
    }
