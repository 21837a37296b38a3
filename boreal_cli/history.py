"""`boreal backfill`, and `boreal verify` for a query on a stack: stable results recomputed from the logs of its sources."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from boreal.model.errors import UserError
from boreal_cli import options, stack

if TYPE_CHECKING:
    import pyarrow as pa

    from deployment.layout import Layout
    from deployment.query_record import QueryRecord
    from services.egress.history import HistoryComparison, ResultRange, SourceExtent
    from services.kafka.settings import ServiceSettings

From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="TIME",
        help="The first event time of the results, in ISO 8601. Default: the earliest time that the logs still cover.",
        show_default=False,
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="TIME",
        help="The end of the event times (exclusive). Default: the end of the final results.",
        show_default=False,
    ),
]
OutFile = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        help="The file for the results: .parquet, .csv or .jsonl. Default: JSON lines on stdout.",
        show_default=False,
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def add_to(app: typer.Typer) -> None:
    """Register the commands of this module."""
    app.command(epilog="Example: boreal backfill departures --from 2013-01-01 --to 2013-01-08 --out week.parquet")(backfill)


def backfill(
    name: stack.Name,
    from_: From = None,
    to: To = None,
    out: OutFile = None,
    force: Force = False,
    data: stack.Data = None,
    as_json: options.Json = False,
) -> None:
    """Recompute the stable results of a range of event time, in a Spark batch job over the logs of the query's sources.

    The logs cover the time that the query itself still needs, and `tuning.history` before it.
    """
    from boreal_cli import result_files
    from services.egress.history import find_range, resolve_range
    from services.hosting import fetch
    from services.stack.launcher import reach
    from services.stack.operations import Operations, reaching

    since, until = parse_time("--from", from_), parse_time("--to", to)
    result_files.check(out, force)
    settings = reach(data)
    fetch.spark(stack.to_stderr)
    started, count = time.monotonic(), 0
    with closing(Operations(settings)) as operations:
        record = operations.query(name)
        layout = operations.layout_of(record)
        with reaching(settings):
            held, wanted = find_range(
                operations.clusters, layout, lambda held: resolve_range(record.query, layout, held, since, until, held.complete)
            )
        with (
            result_files.writing(out, layout.plan.output.schema) as write,
            _recomputed(settings, record, layout, held, wanted) as batches,
        ):
            for batch in batches:
                write(batch)
                count += batch.num_rows
    seconds = round(time.monotonic() - started, 1)
    if as_json and out is not None:
        typer.echo(json.dumps({"query": name, **wanted.shape(), "rows": count, "out": str(out), "seconds": seconds}, indent=2))
    else:
        stack.to_stderr(f"{count:,} stable results {wanted}, in {seconds} s{'' if out is None else f'; they are in {out}'}")


def verify_deployed(name: str, from_: str | None, to: str | None, data: Path | None, as_json: bool) -> None:
    """`boreal verify NAME`: whether q.stable holds what comes of the sources' logs. Exit status 1: it does not; 3: neither has
    a row."""
    from boreal.model.frames import INFINITY
    from boreal_cli import result_files
    from services.egress.history import (
        ResultRange,
        compare,
        delivered_since,
        find_range,
        read_delivered_rows,
        resolve_range,
        stable_extent,
    )
    from services.hosting import fetch
    from services.stack.launcher import reach
    from services.stack.operations import Operations, reaching
    from sunion.tape import BEGINNING

    since, until = parse_time("--from", from_), parse_time("--to", to)
    settings = reach(data)
    fetch.spark(stack.to_stderr)
    started = time.monotonic()
    with closing(Operations(settings)) as operations:
        record = operations.query(name)
        layout = operations.layout_of(record)
        schema = layout.plan.output.schema
        with reaching(settings):
            # The extent of q.stable is read first: all input that it depends on is then in the logs.
            stable_to, next_id = stable_extent(operations.home, layout)
            if stable_to <= BEGINNING:
                # Nothing is final yet, so there is nothing to compute again.
                _report(name, ResultRange(BEGINNING, INFINITY), compare((), ()), started, as_json)
            oldest = delivered_since(operations.home, layout, next_id)

            def choose(held: SourceExtent) -> ResultRange:
                found = _among_given(resolve_range(record.query, layout, held, since, until, stable_to), oldest, since)
                return _of_version(found, record, since)

            held, wanted = find_range(operations.clusters, layout, choose)
            with _recomputed(settings, record, layout, held, wanted) as batches:
                lines = (line for batch in batches for line in result_files.json_lines(schema, batch).splitlines())
                given = (row for row in read_delivered_rows(operations.home, layout, next_id) if wanted.holds(row.time))
                found = compare(given, lines)
    _report(name, wanted, found, started, as_json)


def _report(name: str, wanted: ResultRange, found: HistoryComparison, started: float, as_json: bool) -> NoReturn:
    """Print what was found, and exit. started: by the monotonic clock."""
    from boreal_cli import tables

    if as_json:
        seconds = round(time.monotonic() - started, 1)
        typer.echo(json.dumps({"query": name, **wanted.shape(), **_shape(found), "seconds": seconds}, indent=2))
    else:
        _show(found, f"{name}.stable", wanted)
    raise typer.Exit(tables.verify_status(found.same, found.recomputed))


def is_deployed(query: Path, of_file: Mapping[str, object], of_name: Mapping[str, object]) -> bool:
    """Whether QUERY of `boreal verify` names a query on a stack, not a file. UserError for an option of the other kind."""
    is_name = query.name == str(query) and query.suffix == "" and not query.exists() and not of_file["--source"]
    for option, value in (of_file if is_name else of_name).items():
        if value:
            kind, other = ("the name of a query on a stack", "file") if is_name else ("a query file", "name")
            raise UserError(option, str(value), f"cannot be used with {kind}", f"omit it, or use the {other} of a query")
    return is_name


def parse_time(field: str, text: str | None) -> int | None:
    """Microseconds since the Unix epoch of an ISO 8601 time; UTC if it has no zone."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        fix = "write ISO 8601, such as 2013-01-01 or 2013-01-01T05:10:00Z"
        raise UserError(field, text, "is not a time", fix) from None
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - _EPOCH) // timedelta(microseconds=1)


def _among_given(wanted: ResultRange, oldest: int, since: int | None) -> ResultRange:
    """The range, as far as q.stable still holds it: what Kafka has deleted by age cannot be compared."""
    from formats.json_text import moment
    from services.egress.history import ResultRange

    if wanted.since >= oldest:
        return wanted
    if since is not None or oldest >= wanted.until:
        problem = f"is too early: the topic of stable results begins at {moment(oldest)}"
        fix = "write a later time; the topic's retention.ms sets how long Kafka keeps results"
        raise UserError("--from", moment(wanted.since), problem, fix)
    return ResultRange(oldest, wanted.until)


def _of_version(wanted: ResultRange, record: QueryRecord, since: int | None) -> ResultRange:
    """The range, as far as its results are of the version in charge: only these can be computed again."""
    from formats.json_text import moment
    from services.egress.history import ResultRange

    if record.since is None or wanted.since >= record.since:
        return wanted
    if since is not None or record.since >= wanted.until:
        problem = f"is too early: the results of version {record.version} begin at {moment(record.since)}"
        raise UserError("--from", moment(wanted.since), problem, "write that time, or a later one")
    return ResultRange(record.since, wanted.until)


@contextmanager
def _recomputed(
    settings: ServiceSettings, record: QueryRecord, layout: Layout, held: SourceExtent, wanted: ResultRange
) -> Iterator[Iterator[pa.RecordBatch]]:
    """The results in batches. Spark runs until the context ends."""
    from spark_jobs.batch import recompute
    from spark_jobs.session import close_session, open_session

    with TemporaryDirectory(prefix="boreal-batch-") as scratch:
        stack.to_stderr(f"Spark computes {record.name} {wanted}")
        executors = max(fragment.shards for fragment in layout.plan.fragments)
        session = open_session(f"boreal.{record.name}.batch", settings, Path(scratch), executors)
        try:
            yield recompute(session, settings, record.query, layout, held, wanted)
        finally:
            close_session(session)


def _shape(found: HistoryComparison) -> dict[str, object]:
    first = found.first_difference
    return {
        "same": found.same,
        "holds": found.same,
        "rows": found.recomputed,
        "given": found.given,
        "recomputed": found.recomputed,
        "first_difference": first and asdict(first),
    }


def _show(found: HistoryComparison, topic: str, wanted: ResultRange) -> None:
    from rich.console import Console
    from rich.text import Text

    from boreal_cli.tables import count

    console = Console(highlight=False, soft_wrap=True)
    first = found.first_difference
    if first is None and not found.given:
        text = f"nothing was compared: there is no stable row {wanted}, neither delivered nor recomputed"
        console.print(Text(text, style="yellow"))
        return
    if first is None:
        console.print(Text(f"same: {count(found.given)} stable rows {wanted}, delivered and recomputed", style="green"))
        return
    counts = f"{count(found.given)} rows were delivered, {count(found.recomputed)} were recomputed {wanted}"
    console.print(Text(f"{topic} differs: {counts}; the first difference is in row {first.row}:", style="bold red"))
    given = "(no such row)" if first.given is None else f"{first.given}  (id {first.id})"
    console.print(Text(f"  delivered   {given}"))
    console.print(Text(f"  recomputed  {first.recomputed or '(no such row)'}"))
