"""The commands of the stack: start and stop it, apply and change queries, write their input and show their results.

Commands find a local stack by `--data DIR`, another stack by BOREAL_SITES__A__BOOTSTRAP and its other settings, or else the
local stack in the user's data directory.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from boreal.model.errors import UserError
from boreal_cli import errors, options

if TYPE_CHECKING:
    from boreal.query.spec import Query
    from boreal_cli.through_api import ApiOperations
    from deployment.liveness import Liveness
    from deployment.query_record import QueryRecord
    from services.stack.operations import Operations

LIVE_WITHIN_S = 180.0
"""How long to wait until a query is live. On two busy cores, a Spark job needs about a minute."""
STABLE_WITHIN_S = 10.0
"""How long to wait after that until the query is stable. Most are stable soon, and the command can then report it."""

_LOOK_S = 0.1

Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="The directory of the local stack. Default: BOREAL_DATA, or ~/.local/share/boreal.",
        show_default=False,
    ),
]
Engine = Annotated[
    str | None,
    typer.Option("--engine", metavar="E", help="native or spark, instead of the engine in the query.", show_default=False),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The query's name.", show_default=False)]

query = typer.Typer()


@query.callback(invoke_without_command=True)
def _query(context: typer.Context) -> None:
    """Apply, change, show and remove queries: through the API where one runs here, else over Kafka."""
    options.show_help_alone(context)


def add_to(app: typer.Typer) -> None:
    """Register the commands of this module."""
    app.command(epilog="Example: boreal up --sites 2")(up)
    app.command(epilog="Example: boreal status --json")(status)
    app.command(epilog="Example: boreal down")(down)
    app.add_typer(query, name="query")
    app.command(epilog="Example: boreal tail departures")(tail)
    app.command(epilog="Example: boreal feed departures jfk=jfk.csv lga=lga.csv --speed 60x --end")(feed)
    app.command(epilog="Example: boreal fault cut jfk for 10s")(fault)


def missing(error: ModuleNotFoundError) -> UserError:
    """The error for a package that the command needs and that is not installed, or that another folder in PYTHONPATH hides."""
    package = sys.modules.get((error.name or "").partition(".")[0])
    ours = Path(__file__).resolve().parents[1]
    places = [Path(place).resolve() for place in getattr(package, "__path__", ())]
    if places and not any(place.parent == ours for place in places) and (ours / places[0].name).is_dir():
        problem = f"hides boreal's own package {places[0].name}"
        return UserError("PYTHONPATH", str(places[0]), problem, f"remove {places[0].parent} from PYTHONPATH")
    return UserError("command", error.name, "is not installed, and this command needs it", "run pip install 'boreal[stack]'")


def up(
    sites: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=26, help="The number of sites; each has a Kafka cluster. Default: 1.", show_default=False
        ),
    ] = None,
    data: Data = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=65535, help="The port of the API. Default: 8080, or a free one.", show_default=False
        ),
    ] = None,
    allow_chaos: Annotated[
        bool, typer.Option("--allow-chaos", help="Connect each process to each site through a link that faults can cut.")
    ] = False,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="One process with all queries, over files: no Kafka, Redis or Java.")
    ] = False,
    demo: Annotated[
        bool, typer.Option("--demo", help="With --embedded: a query over flights that are replayed, and faults allowed.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Start a local stack (Kafka, Redis and the processes of its queries), and return when it is ready.

    The stack runs in the background until `boreal down`. The next start has the same queries and addresses.
    """
    if embedded or demo:
        from boreal_cli import embedded as embedded_commands
        from services.stack.state import default_data

        if not embedded:
            raise UserError("--demo", None, "is for an embedded installation", "write boreal up --embedded --demo")
        if sites is not None:
            raise UserError("--sites", sites, "cannot be used with --embedded, which has one site", "leave it out")
        embedded_commands.up((data or default_data()).absolute(), port, allow_chaos, demo, as_json)
        return
    from services.stack.launcher import LocalStack, StackFailed, default_data

    stack = LocalStack((data or default_data()).absolute())
    try:
        was_down = stack.up(sites, port, allow_chaos, to_stderr)
    except StackFailed as error:
        problem = UserError(
            "stack", str(stack.data), str(error), "correct it and run the command again; boreal down stops what is running"
        )
        errors.show(problem, as_json)
        raise typer.Exit(1) from None
    if as_json:
        _print_json(stack.status())
        return
    settings = stack.settings
    typer.echo(f"{'boreal is up' if was_down else 'boreal is already up'}, in {stack.data}")
    for site, kafka in settings.sites.items():
        typer.echo(f"  Kafka {site}   {kafka.bootstrap}")
    typer.echo(f"  Redis     {settings.redis.url}")
    typer.echo(f"  API       {stack.link}")
    typer.echo("Next: boreal query apply FILE, boreal feed QUERY STREAM=PATH, boreal tail QUERY; boreal status, boreal down")


def status(data: Data = None, as_json: options.Json = False) -> None:
    """Show the processes and queries of the stack. Exit status 1: the stack is not ready, or not running."""
    from services.stack.launcher import LocalStack, default_data, is_local
    from services.stack.operations import Operations

    directory: Path | None = None
    embedded = None
    if is_local(data):
        from boreal_cli.embedded import status_of

        embedded = status_of((data or default_data()).absolute())
    if embedded is not None:
        directory, found = (data or default_data()).absolute(), embedded
    elif not is_local(data):
        from services.kafka.settings import load_settings

        with closing(Operations(load_settings())) as operations:
            found = operations.status()
    else:
        stack = LocalStack((data or default_data()).absolute())
        directory, found = stack.data, stack.status()
        is_kafka_there = all(process["state"] == "running" for process in found["processes"] if process["kind"] == "kafka")
        if found["queries"] and is_kafka_there:
            with closing(Operations(stack.settings)) as operations, suppress(UserError):  # its Kafka may still be down
                found |= operations.details()
    if as_json:
        _print_json(found)
    else:
        from boreal_cli.stack_tables import show_status

        show_status(found, directory)
    raise typer.Exit(0 if found["ready"] else 1)


def down(data: Data = None, as_json: options.Json = False) -> None:
    """Stop all processes that `boreal up` started, and no others. Queries, logs and checkpoints are kept for the next `up`."""
    from services.stack.launcher import LocalStack, default_data, stacks_up

    stack = LocalStack((data or default_data()).absolute())
    was_up = stack.down(to_stderr)
    if as_json:
        _print_json({"was_up": was_up})
    else:
        typer.echo(f"boreal is down, in {stack.data}" if was_up else f"nothing was up in {stack.data}")
        for other in [] if was_up else stacks_up():
            typer.echo(f"a stack is up in {other}: boreal down --data {other}")


def fault(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="FAULT",
            help="A fault of boreal run --fault, without `at T`: cut, slow, freeze or crash a stream or a replica for a time.",
            show_default=False,
        ),
    ],
    data: Data = None,
    as_json: options.Json = False,
) -> None:
    """Break something that runs, for a time. The installation was started with --allow-chaos, and undoes the fault itself.

    QUERY.STREAM or QUERY.main.r0 names the target where several queries have one of that name.
    """
    from boreal_cli.through_api import api_of
    from services.stack.state import default_data

    directory = (data or default_data()).absolute()
    api = api_of(directory)
    if api is None:
        fix = "start it with boreal up --allow-chaos, or name its directory with --data"
        raise UserError("--data", str(directory), "has no installation that runs", fix)
    with closing(api):
        begun = api.fault(" ".join(words))
    if as_json:
        _print_json(begun)
    else:
        typer.echo(f"{begun['fault']}: {', '.join(begun['targets'])}")


@query.command(epilog="Example: boreal query apply departures.yaml --engine native")
def apply(file: options.QueryFile, engine: Engine = None, data: Data = None, as_json: options.Json = False) -> None:
    """Start a query, or change a running one; return when it is live.

    Its streams read the topics in the file. Topics that do not exist are created. Each record is a JSON object. Operators run
    in Spark unless the query names an engine.
    """
    from boreal.query.planner import plan
    from boreal.query.spec import load_query
    from services.hosting.fetch import spark
    from services.stack.launcher import is_local
    from services.stack.operations import with_default_engine, with_engine

    spec = load_query(file)
    wanted = spec if engine is None else with_engine(spec, engine)
    with closing(_query_operations(data, as_json)) as operations:
        if not _is_embedded(data):
            wanted = with_default_engine(wanted)
        if is_local(data) and any("spark" in fragment.engines for fragment in plan(wanted).fragments):
            spark(to_stderr)
        record = operations.apply(wanted)
        _report(record, _await_live(operations, record), plan(record.query).notes, as_json)


@query.command("set", epilog="Example: boreal query set departures delay_threshold=1s policy=process/delay")
def set_(
    name: Name,
    changes: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE...",
            help="The setting and its new value: delay_threshold, reconcile, policy or slo.",
            show_default=False,
        ),
    ],
    data: Data = None,
    as_json: options.Json = False,
) -> None:
    """Change a query while it runs. A new delay threshold or objective takes effect at once. For other changes, replicas
    restart in turn."""
    pairs = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise UserError("KEY=VALUE", change, "has no =", "write KEY=VALUE, such as delay_threshold=1s")
        pairs[key] = value
    with closing(_query_operations(data, as_json)) as operations:
        record = operations.set(name, pairs)
        _report(record, _await_live(operations, record, stable_within_s=0), (), as_json)


@query.command("list", epilog="Example: boreal query list --json")
def list_(data: Data = None, as_json: options.Json = False) -> None:
    """List all queries."""
    with closing(_query_operations(data, as_json)) as operations:
        records = operations.queries()
    if as_json:
        _print_json({"queries": [_summary(record) for record in records.values()]})
    else:
        from boreal_cli.stack_tables import show_queries

        show_queries([_summary(record) for record in records.values()])


@query.command(epilog="Example: boreal query show departures")
def show(name: Name, data: Data = None, as_json: options.Json = False) -> None:
    """Show a query and its state."""
    with closing(_query_operations(data, as_json)) as operations:
        record = operations.query(name)
        liveness = operations.liveness(record)
    if as_json:
        _print_json({**_summary(record), **_how(liveness), "spec": record.spec})
    else:
        from boreal_cli.stack_tables import show_query

        show_query(_summary(record), _how(liveness), record.spec)


@query.command(epilog="Example: boreal query pause departures")
def pause(name: Name, data: Data = None, as_json: options.Json = False) -> None:
    """Stop the processes of a query. No input is lost: its topics keep the records that arrive."""
    with closing(_query_operations(data, as_json)) as operations:
        record = operations.pause(name, True)
        operations.await_ended(name, _saying_what_ends())
    if as_json:
        _print_json(_summary(record))
    else:
        typer.echo(f"{name} is paused")


@query.command(epilog="Example: boreal query resume departures")
def resume(name: Name, data: Data = None, as_json: options.Json = False) -> None:
    """Continue a paused query; return when it is live."""
    with closing(_query_operations(data, as_json)) as operations:
        record = operations.pause(name, False)
        _report(record, _await_live(operations, record), (), as_json)


@query.command(epilog="Example: boreal query delete departures")
def delete(name: Name, data: Data = None, as_json: options.Json = False) -> None:
    """Remove a query with its logs, checkpoints and output topics. Its input topics are kept."""
    with closing(_query_operations(data, as_json)) as operations:
        operations.delete(name, _saying_what_ends())
    if as_json:
        _print_json({"name": name, "deleted": True})
    else:
        typer.echo(f"{name} is deleted")


def tail(
    name: Annotated[str, typer.Argument(metavar="QUERY", help="The query's name.", show_default=False)],
    stable: Annotated[bool, typer.Option("--stable", help="Show only stable results.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Also show boundaries and the ends of corrections.")] = False,
    data: Data = None,
    as_json: options.Json = False,
) -> None:
    """Show the last few results of a query, then new ones as they arrive: stable, tentative and revoked ones."""
    from boreal_cli import tail as tailing
    from services.kafka.topics import out_topic, stable_topic
    from services.stack.operations import reached

    if stable and everything:
        raise UserError("--all", None, "cannot be used with --stable", "use only one of the two")
    with closing(_operations(data)) as operations:
        operations.query(name)
        settings, home = operations.settings, operations.home
        view = tailing.TailPrinter()
        if stable:
            records = tailing.stable_rows(home, stable_topic(name))
        else:
            records = tailing.changes(home, out_topic(name, settings.home, settings.site_names), everything)
        for record in reached(settings, records):
            if as_json:
                print(json.dumps(record), flush=True)
            elif stable:
                view.show_stable(record)
            else:
                view.show(record)


def feed(
    name: Annotated[str, typer.Argument(metavar="QUERY", help="The query's name.", show_default=False)],
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STREAM=PATH]...",
            help="A .csv, .jsonl or .parquet file for a stream, or generate:RATE,SECONDS[,KEYS].",
            show_default=False,
        ),
    ] = None,
    rate: options.Rate = None,
    speed: options.Speed = None,
    end: Annotated[bool, typer.Option("--end", help="End the streams after the rows, so that all windows close.")] = False,
    data: Data = None,
    as_json: options.Json = False,
) -> None:
    """Write rows from files to the topics of a query's streams, in event-time order. --end without files ends all streams."""
    from boreal_cli.progress import LINE_EVERY_SECONDS
    from boreal_cli.throttle import Throttle
    from embedded.file_sources import read_source
    from embedded.session import parse_pace
    from services.stack.feed import end as end_topic
    from services.stack.feed import feed as feed_rows
    from services.stack.operations import input_topics, reaching

    pace = parse_pace(rate, speed)
    with closing(_operations(data)) as operations:
        spec = operations.query(name).query
        clusters = operations.clusters_of(spec)
        paths = _paths(sources or [], spec)
        rows = {stream: read_source(stream, spec.streams[stream], path) for stream, path in paths.items()}
        for stream in operations.ended_streams(name):
            if stream in rows:
                problem = "has ended: more rows would all become dead letters"
                raise UserError("STREAM=PATH", stream, problem, "omit it, or apply a query that reads another topic")
        total = sum(source.batch.num_rows for source in rows.values())
        throttle = Throttle.every(LINE_EVERY_SECONDS)

        def tell(count: int) -> None:
            if throttle.is_due():
                to_stderr(f"{count:,} of {total:,} rows")

        with reaching(operations.settings):
            if rows:
                feed_rows(clusters, spec.streams, rows, pace, ended=end, on_progress=tell)
            elif end:
                for stream, topic in input_topics(spec).items():
                    end_topic(clusters[stream], topic)
    refused = {stream: len(source.rejects) for stream, source in rows.items() if source.rejects}
    if as_json:
        _print_json({"rows": total, "refused": refused, "ended": end})
    else:
        for stream, count in refused.items():
            typer.echo(f"{stream}: {count:,} records of {paths[stream]} cannot be read and were skipped", err=True)
        typer.echo(f"{total:,} rows written" + ("; all their streams have ended" if end else ""))


def _paths(sources: Collection[str], spec: Query) -> dict[str, str]:
    """The path of each stream, in the order of the query file, which settles ties."""
    from boreal.query.spec import did_you_mean

    paths = {}
    for text in sources:
        stream, equals, path = text.partition("=")
        if not (stream and equals and path):
            raise UserError("STREAM=PATH", text, "is not STREAM=PATH", f"write {next(iter(spec.streams))}=PATH")
        if stream not in spec.streams:
            raise UserError("STREAM=PATH", text, f"there is no stream {stream}", did_you_mean(stream, spec.streams))
        paths[stream] = path
    return {stream: paths[stream] for stream in spec.streams if stream in paths}


# Shared by several commands


def _operations(data: Path | None) -> Operations:
    from services.stack.launcher import reach
    from services.stack.operations import Operations

    return Operations(reach(data))


def _query_operations(data: Path | None, as_json: bool) -> Operations | ApiOperations:
    """The operations on queries: through the API of a local installation where it answers, and over Kafka elsewhere."""
    from boreal_cli.through_api import api_of
    from services.stack.launcher import is_local
    from services.stack.state import default_data

    api = api_of((data or default_data()).absolute()) if is_local(data) else None
    if api is None:
        return _operations(data)
    if not as_json:
        to_stderr(f"through the API at {api.address}")
    return api


def _is_embedded(data: Path | None) -> bool:
    from services.stack.embedded import EmbeddedStack
    from services.stack.launcher import is_local
    from services.stack.state import default_data

    return is_local(data) and EmbeddedStack((data or default_data()).absolute()).exists


def _await_live(
    operations: Operations | ApiOperations, record: QueryRecord, stable_within_s: float = STABLE_WITHIN_S
) -> Liveness:
    """Wait until the query is live, then up to `stable_within_s` seconds until it is stable, and print what is waited for.
    Returns immediately if the query is paused or has a problem."""
    started = time.monotonic()
    ready_at: float | None = None
    say = _say_changes()
    while True:
        liveness = operations.liveness(record)
        now = time.monotonic()
        if liveness.is_ready and ready_at is None:
            ready_at = now
        if record.paused or liveness.is_stable or liveness.problem or now - started > LIVE_WITHIN_S:
            return liveness
        if ready_at is not None and now - ready_at >= stable_within_s:
            return liveness
        if liveness.waits_for:
            say(f"{record.name} waits for {', '.join(liveness.waits_for)}")
        time.sleep(_LOOK_S)


def _report(record: QueryRecord, liveness: Liveness, notes: Collection[str], as_json: bool) -> None:
    """Print the result of a change. Exit status 1: the query is neither live nor paused."""
    if record.query.delay_threshold < liveness.least_x_ms * 1_000:
        given, least = record.spec["delay_threshold"], f"{liveness.least_x_ms:.0f} ms"
        notes = (*notes, f"delay_threshold {given} is below {least}, the present need: late input will cause tentative results")
    if as_json:
        _print_json({**_summary(record), **_how(liveness), "notes": list(notes)})
    else:
        for note in notes:
            typer.echo(f"note: {note}")
        if record.paused:
            typer.echo(f"{record.name} is paused, revision {record.revision}")
        elif liveness.is_stable:
            typer.echo(f"{record.name} is live, revision {record.revision}")
        elif liveness.is_ready:
            missing = f", without {', '.join(liveness.missing)}" if liveness.missing else ""
            typer.echo(f"{record.name} is live with tentative results{missing}, revision {record.revision}")
        else:
            why = liveness.problem or f"it waits for {', '.join(liveness.waits_for)}; see DATA/logs and boreal status"
            typer.secho(f"{record.name} is not live: {why}", fg=typer.colors.RED, err=True)
    raise typer.Exit(0 if liveness.is_ready or record.paused else 1)


def _summary(record: QueryRecord) -> dict[str, Any]:
    """The record as it is stored, not parsed: a query that this version cannot read must not hide the others."""
    spec = record.spec
    return {
        "name": record.name,
        "revision": record.revision,
        "paused": record.paused,
        "delay_threshold": spec["delay_threshold"],
        "reconcile": spec["reconcile"],
        "policy": "/".join(spec["policy"].values()),
        "replicas": spec["replicas"],
        "engine": spec.get("engine"),
    }


def _how(liveness: Liveness) -> dict[str, Any]:
    return {
        "live": liveness.is_ready,
        "states": dict(liveness.states),
        "missing_inputs": list(liveness.missing),
        "least_x_ms": liveness.least_x_ms,
        "waits_for": list(liveness.waits_for),
        "problem": liveness.problem,
    }


def to_stderr(line: str) -> None:
    """Print a line about the progress of a command."""
    print(line, file=sys.stderr, flush=True)


def _saying_what_ends() -> Callable[[Collection[str]], None]:
    say = _say_changes()
    return lambda names: say(f"waiting for the end of {', '.join(names)}")


def _say_changes() -> Callable[[str], None]:
    """A function that prints a line to stderr, unless it is the same as the one before."""
    last = ""

    def say(line: str) -> None:
        nonlocal last
        if line != last:
            last = line
            to_stderr(line)

    return say


def _print_json(value: dict[str, Any]) -> None:
    typer.echo(json.dumps(value, indent=2))
