"""Comparisons as jobs: what a request may ask for, and the runs that it becomes.

A request is checked whole before it becomes a job, with a row for each stream in place of its input. Its input is generated:
no request reads a file, and none runs longer or writes more than the limits here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from api.installation import NotFoundError
from boreal.model.errors import UserError
from boreal.query.refusals import did_you_mean
from boreal.query.spec import load_query
from deployment.query_record import QueryRecord
from embedded.compare import ALL, Combination, combinations, run_combination
from embedded.generate import PREFIX, parse_generator
from embedded.session import RunOptions, RunSession, make_session

MOST_ROWS = 500_000
"""How many rows the streams of a comparison may have together."""
MOST_RUNS = 100
"""How many runs a comparison may have."""
MOST_ROWS_RUN = 10_000_000
"""How many rows all runs of a comparison may process together."""

_ONE_ROW = f"{PREFIX}1,1"
_FIELDS = {
    "--source": "sources",
    "--fault": "faults",
    "--modes": "modes",
    "--policies": "policies",
    "--mode": "mode",
    "--policy": "policy",
    "--delay-threshold": "delay_thresholds",
    "--rate": "rate",
    "--speed": "speed",
    "--seed": "seed",
}
"""The field of a request for each option of the command line."""

EXAMPLE: dict[str, Any] = {
    "id": "which-mode",
    "query": "departures",
    "sources": {"jfk": "generate:100,30"},
    "speed": "10x",
    "faults": ["cut jfk at 1s for 1s"],
    "modes": ["overlay_redo", "undo_redo"],
    "policies": ["process/process"],
    "delay_thresholds": ["1s", "3s"],
}

OnProgress = Callable[[int, int], None]
"""Called with the runs that are done, and all runs: before the first run, and after each."""

Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
Short = Annotated[str, Field(min_length=1, max_length=200)]


class InputRequest(BaseModel):
    """A query, generated input for it, and faults."""

    model_config = ConfigDict(extra="forbid")

    id: Id | None = Field(default=None, description="The id of the job; by default one is made. The same id with the same "
        "request is the same job.")  # fmt: skip
    query: Short | dict[str, Any] = Field(description="The name of a query of the installation, or a query itself.")
    sources: dict[Short, Short] = Field(
        description="The input of each stream: `generate:RATE,SECONDS[,KEYS]`, RATE rows a second of event time.",
        max_length=100,
    )
    rate: Short | None = Field(default=None, description="Rows a second of run time, of all streams together: `1000/s`. By "
        "default 10000/s, or `speed`.")  # fmt: skip
    speed: Short | None = Field(default=None, description="Event time over run time: `10x`. Not together with `rate`.")
    faults: list[Short] = Field(default=[], description="Faults, as `boreal run --fault` takes them.", max_length=20)
    seed: int = Field(default=0, description="The seed of the input and of the model of work: a run repeats exactly.", ge=0,
        le=2**53)  # fmt: skip

    def session(self, spec: Mapping[str, Any], sources: Mapping[str, str], **options: str | None) -> RunSession:
        """The session of its runs, with other sources. options: of `RunOptions`. UserError, by the field of the request."""
        asked = RunOptions(
            faults=self.faults, rate=self.rate, speed=self.speed, engine="native", seed=self.seed, **options  # type: ignore[arg-type]
        )  # fmt: skip
        try:
            return make_session(spec, [f"{stream}={text}" for stream, text in sources.items()], asked)
        except UserError as error:
            raise blaming_fields(error) from None


class ComparisonRequest(InputRequest):
    """The same input and faults, under each X, mode and policy: a run for each combination."""

    model_config = ConfigDict(json_schema_extra={"example": EXAMPLE})

    modes: list[Short] | None = Field(
        default=None, description="The reconciliation modes; null: all.", min_length=1, max_length=3
    )
    policies: list[Short] | None = Field(
        default=None, description="Policies, FAILURE/STABILIZATION each; null: the six that keep X.", min_length=1, max_length=9
    )
    delay_thresholds: list[Short] = Field(default=[], description="Each X; empty: that of the query.", max_length=20)


@dataclass(frozen=True, slots=True)
class Part:
    """The runs of a comparison that have the same X."""

    session: RunSession
    """The query, its input and the faults."""
    combinations: list[Combination]
    """The runs."""
    notes: list[str]
    """Which combinations were omitted, and why."""

    @property
    def x_ms(self) -> float:
        return self.session.plan.delay_threshold_us / 1_000


def spec_of(request: InputRequest, records: Mapping[str, QueryRecord]) -> dict[str, Any]:
    """The query that a request is about, as it is now. NotFoundError, UserError."""
    if isinstance(request.query, str):
        if request.query not in records:
            raise NotFoundError("query", request.query, "there is no such query", did_you_mean(request.query, records))
        return records[request.query].spec
    try:
        return load_query(request.query).dump()
    except UserError as error:
        raise replace(error, field=f"query.{error.field}") from None


def check(request: ComparisonRequest, spec: Mapping[str, Any]) -> None:
    """UserError for the first thing that would keep a comparison from running, by the field of the request."""
    rows = check_input(request, spec)
    check_size(sum(len(part.combinations) for part in parts(request, spec, one_row(request))), rows)


def check_input(request: InputRequest, spec: Mapping[str, Any]) -> int:
    """How many rows a request makes. UserError if they are too many, or not for streams of the query."""
    if request.rate is not None and request.speed is not None:
        raise UserError("speed", request.speed, f"cannot be used with rate {request.rate}", "send one of the two")
    streams, rows = spec["streams"], 0
    for stream, text in request.sources.items():
        field = f"sources.{stream}"
        if stream not in streams:
            raise UserError(field, text, f"there is no stream {stream}", did_you_mean(stream, streams))
        if not text.startswith(PREFIX):
            raise UserError(field, text, "is no generator, and requests read no files", "write generate:RATE,SECONDS[,KEYS]")
        try:
            rows += parse_generator(stream, text)[1]
        except UserError as error:
            raise replace(error, field=field, value=text) from None
    if rows > MOST_ROWS:
        fix = f"generate at most {MOST_ROWS:,} together, or use the command line"
        raise UserError("sources", rows, "are more rows than a job may have", fix)
    return rows


def one_row(request: InputRequest) -> dict[str, str]:
    """A row for each stream, in place of its input."""
    return dict.fromkeys(request.sources, _ONE_ROW)


def check_size(runs: int, rows: int) -> None:
    """UserError if a job would have too many runs, with so many rows each."""
    if runs > MOST_RUNS:
        fix = f"ask for at most {MOST_RUNS} combinations of X, mode and policy"
        raise UserError("delay_thresholds", runs, "are more runs than a comparison may have", fix)
    if rows * runs > MOST_ROWS_RUN:
        fix = f"ask for fewer rows or combinations: at most {MOST_ROWS_RUN:,} rows over all runs, or use boreal compare"
        raise UserError("sources", rows * runs, "are more rows than all runs together may process", fix)


def parts(request: ComparisonRequest, spec: Mapping[str, Any], sources: Mapping[str, str] | None = None) -> Iterator[Part]:
    """The runs of a request, for one X after the other. sources: instead of those of the request. UserError."""
    for x in dict.fromkeys(request.delay_thresholds) or (None,):
        session = request.session(spec, request.sources if sources is None else sources, delay_threshold=x)
        yield part_of(session, request.modes, request.policies)


def part_of(session: RunSession, modes: Sequence[str] | None, policies: Sequence[str] | None) -> Part:
    """The runs of a session under some modes and policies; None: all. UserError, by the field of the request."""
    try:
        return Part(session, *combinations(session, *(ALL if each is None else ",".join(each) for each in (modes, policies))))
    except UserError as error:
        raise blaming_fields(error) from None


def run(
    request: ComparisonRequest, spec: Mapping[str, Any], scratch: Path, on_progress: OnProgress
) -> dict[str, Any]:
    """Run a comparison: the query, the faults, a row of figures for each run, and notes. scratch: a folder for files that go
    again."""
    total = sum(len(part.combinations) for part in parts(request, spec, one_row(request)))
    return {"query": spec["name"], "faults": request.faults, **run_parts(parts(request, spec), total, scratch, on_progress)}


def run_parts(found: Iterable[Part], total: int, scratch: Path, on_progress: OnProgress) -> dict[str, Any]:
    """Run what a request has become, `total` runs: `table` and `notes`."""
    table: list[dict[str, Any]] = []
    notes: list[str] = []
    on_progress(0, total)
    for part in found:
        notes += [note for note in part.notes if note not in notes]
        for combination in part.combinations:
            with TemporaryDirectory(dir=scratch) as folder:
                _, row = run_combination(part.session, combination, Path(folder) / combination.name)
            del row["dir"]
            table.append({"x_ms": part.x_ms, **row})
            on_progress(len(table), total)
    return {"table": table, "notes": notes}


def blaming_fields(error: UserError) -> UserError:
    """The same error, with the field of a request in place of the option of `boreal compare`."""
    if error.field == "--source" and error.value is None:
        return replace(error, field="sources", fix="generate its rows: generate:RATE,SECONDS")
    return replace(error, field=_FIELDS.get(error.field, error.field))
