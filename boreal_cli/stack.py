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
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from boreal.model.errors import UserError
from boreal_cli import errors, options

if TYPE_CHECKING:
    from boreal.query.spec import Query
    from boreal_cli.through_api import ApiOperations
    from deployment.liveness import Liveness
    from deployment.query_record import QueryRecord
    from services.kafka.landing import Landing
    from services.stack.operations import Operations

LIVE_WITHIN_S = 180.0
"""How long to wait until a query is live. On two busy cores, a Spark job needs about a minute."""
STABLE_WITHIN_S = 10.0
"""How long to wait after that until the query is stable. Most are stable soon, and the command can then report it."""

EVOLVED_WITHIN_S = 300.0
"""How long to wait until another version has taken over. One with a long history to read goes on in the background."""
_LOOK_AT_EVOLUTION_S = 0.5
_UNDER_WAY = ("claiming", "building", "taking_over", "rolling_back", "leaving")

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


@query.callback(invoke_without_command=True, epilog="Example: boreal query apply departures.yaml")
def _query(context: typer.Context) -> None:
    """Apply, change, show and remove queries: through the API where one runs here, else over Kafka."""
    options.show_help_alone(context)


def add_to(app: typer.Typer) -> None:
    """Register the commands of this module."""
    app.command(epilog="Example: boreal init departures.yaml --dry-run")(init)
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
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            max=256,
            help="Run the sources, nodes and egresses of all queries in N processes, at least 2 for queries with two replicas. "
            "0: each has a process of its own. Default: as many as there are cores, from 2 to 8; with --allow-chaos 0, so that "
            "a fault stops one of them alone.",
            show_default=False,
        ),
    ] = None,
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
        if workers is not None:
            raise UserError("--workers", workers, "cannot be used with --embedded, which is one process", "leave it out")
        embedded_commands.up((data or default_data()).absolute(), port, allow_chaos, demo, as_json)
        return
    from services.stack.launcher import LocalStack, StackFailed, refuse_sites_elsewhere
    from services.stack.state import default_data

    refuse_sites_elsewhere(data)
    stack = LocalStack((data or default_data()).absolute())
    try:
        was_down = stack.up(sites, port, allow_chaos, to_stderr, workers)
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


def init(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="QUERY.yaml", help="Queries whose topics are needed too.", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing: print what is missing or wrong, and commands that mend it.")
    ] = False,
    data: Data = None,
    as_json: options.Json = False,
) -> None:
    """Create the topics that boreal needs in Kafka. If some exist with other settings, all are named, and nothing is created.

    Kafka is found as by all commands, such as by BOREAL_SITES__A__BOOTSTRAP=HOST:PORT. Input topics that exist are not changed.
    """
    from boreal.query.spec import load_query
    from services.stack.launcher import reach
    from services.stack.operations import Operations

    queries = [load_query(file) for file in files or ()]
    with closing(Operations(reach(data))) as operations:
        if dry_run:
            _show_landing(operations.landing(queries), as_json)
            return
        created = operations.prepare(queries)
    if as_json:
        _print_json({"created": created})
        return
    for site, names in created.items():
        typer.echo(f"Kafka {site}: {', '.join(names) if names else 'nothing was missing'}")


def _show_landing(found: dict[str, Landing], as_json: bool) -> None:
    if as_json:
        _print_json(
            {
                site: {
                    "absent": [spec.name for spec in landing.findings.absent],
                    "problems": [asdict(wrong) for wrong in landing.findings.problems],
                    "commands": list(landing.commands()),
                    "acls": list(landing.acl_commands()),
                }
                for site, landing in found.items()
            }
        )
        return
    for site, landing in found.items():
        typer.echo(f"# Kafka {site} at {landing.bootstrap}")
        for spec in landing.findings.absent:
            typer.echo(f"#   {spec.name} is absent")
        for wrong in landing.findings.problems:
            typer.echo(f"#   {wrong.topic}: {wrong.problem} (it has {wrong.found}){'' if wrong.settings else f'; {wrong.fix}'}")
        for command in landing.commands():
            typer.echo(command)
        typer.echo(f"# Where Kafka {site} authorises its users:")
        for command in landing.acl_commands():
            typer.echo(command)


def status(data: Data = None, as_json: options.Json = False) -> None:
    """Show the processes and queries of the stack. Exit status 1: the stack is not ready, or not running."""
    from services.stack.description import is_local
    from services.stack.launcher import LocalStack
    from services.stack.operations import Operations
    from services.stack.state import default_data

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
    from services.stack.description import stacks_up
    from services.stack.launcher import LocalStack
    from services.stack.state import default_data

    stack = LocalStack((data or default_data()).absolute())
    for user in stack.other_users():
        to_stderr(f"{user} is connected to a server of this stack, and loses it")
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
    from boreal_cli.through_api import reached_api

    with reached_api(data, "boreal up --allow-chaos") as api:
        begun = api.fault(" ".join(words))
    if as_json:
        _print_json(begun)
    else:
        typer.echo(f"{begun['fault']}: {', '.join(begun['targets'])}")


@query.command(epilog="Example: boreal query apply departures.yaml --engine native")
def apply(
    file: options.QueryFile,
    engine: Engine = None,
    evolve: Annotated[
        bool,
        typer.Option(
            "--evolve",
            help="Build another version of the running query beside it, with other streams, operators, output, shards or "
            "fragments. It takes over the query's outputs once it has caught up: no row is given twice, and none is left out.",
        ),
    ] = False,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="With --evolve: from where the new version reads the topics of its streams: earliest, latest, or the time "
            "from which on records were written; or state: it reads what the running version keeps, and shares its sources.",
        ),
    ] = "earliest",
    data: Data = None,
    as_json: options.Json = False,
) -> None:
    """Start a query, or change a running one; return when it is live.

    Its streams read the topics in the file. Topics that do not exist are created. Each record is a JSON object. Operators run
    in Spark unless the query names an engine; a running query keeps the engine that it has. `query validate` says beforehand
    what a file would change.
    """
    from boreal.query.planner import plan
    from boreal.query.spec import load_query
    from services.hosting.fetch import spark
    from services.stack.description import is_local
    from services.stack.operations import with_default_engine, with_engine, with_engine_of

    spec = load_query(file)
    wanted = spec if engine is None else with_engine(spec, engine)
    with closing(_query_operations(data, as_json)) as operations:
        if not _is_embedded(data):
            running = operations.queries().get(wanted.name)
            wanted = with_default_engine(with_engine_of(wanted, running.query if running else None))
        if is_local(data) and any("spark" in fragment.engines for fragment in plan(wanted).fragments):
            spark(to_stderr)
        if evolve:
            _report_evolution(operations, operations.evolve(wanted, start), as_json)
        record = operations.apply(wanted)
        _report(record, _await_live(operations, record), plan(record.query).notes, as_json)


@query.command(epilog="Example: boreal query validate departures.yaml")
def validate(
    file: options.QueryFile,
    engine: Engine = None,
    start: Annotated[
        str, typer.Option("--from", metavar="WHERE", help="From where another version would read: see query apply.")
    ] = "earliest",
    data: Data = None,
    as_json: options.Json = False,
) -> None:
    """Say what a file would change of the query that runs under its name, without doing it: which parts, how that is taken, and
    what clients would notice. Exit status 1: neither apply nor apply --evolve does it now."""
    from boreal.query.spec import load_query
    from services.stack.operations import with_engine

    spec = load_query(file)
    with closing(_query_operations(data, as_json)) as operations:
        found = operations.validate(spec if engine is None else with_engine(spec, engine), start)
    change = found["change"]
    if change is not None and change["command"] is not None:
        change["command"] = change["command"].replace("FILE", str(file))
    if as_json:
        _print_json(found)
    else:
        from boreal_cli.stack_tables import show_change

        show_change(spec.name, f"boreal query apply {file}", found)
    raise typer.Exit(1 if change is not None and change["refused"] is not None else 0)


@query.command(epilog="Example: boreal query rollback departures")
def rollback(name: Name, data: Data = None, as_json: options.Json = False) -> None:
    """Let the version of a query that was in charge before take over again, or give up one that has not taken over; return
    when that is done."""
    with closing(_query_operations(data, as_json)) as operations:
        _report_evolution(operations, operations.roll_back(name, _saying_what_ends()), as_json)


@query.command(epilog="Example: boreal query settle departures")
def settle(name: Name, data: Data = None, as_json: options.Json = False) -> None:
    """Delete the version of a query that was in charge before, with its logs and checkpoints. The outputs stay. After that
    there is no way back to it."""
    with closing(_query_operations(data, as_json)) as operations:
        _report_evolution(operations, operations.settle(name, _saying_what_ends()), as_json)


@query.command("set", epilog="Example: boreal query set departures delay_threshold=1s policy=process/delay")
def set_(
    name: Name,
    changes: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE...",
            help="The setting and its new value: delay_threshold, reconcile, policy, alpha, replicas or slo.",
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
        how = {**_how(operations.liveness(record)), "streams": operations.streams(name), **operations.answers(name)}
        how["evolution"] = operations.evolution(record)
    if as_json:
        _print_json({**_summary(record), **how, "spec": record.spec})
    else:
        from boreal_cli.stack_tables import show_query

        show_query(_summary(record), how, record.spec)


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
            help="A .csv, .jsonl, .parquet or .arrow file for a stream, or generate:RATE,SECONDS[,KEYS].",
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
    from services.stack.description import is_local
    from services.stack.state import default_data

    api = api_of((data or default_data()).absolute()) if is_local(data) else None
    if api is None:
        return _operations(data)
    if not as_json:
        to_stderr(f"through the API at {api.address}")
    return api


def _is_embedded(data: Path | None) -> bool:
    from services.stack.description import is_local
    from services.stack.embedded import EmbeddedStack
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


def _report_evolution(operations: Operations | ApiOperations, record: QueryRecord, as_json: bool) -> NoReturn:
    """Wait until another version has taken over, and print which one is in charge. Exit status 1: it has not in the time."""
    name, started, say = record.name, time.monotonic(), _say_changes()
    while (found := operations.evolution(record)) is not None and found["state"] in _UNDER_WAY:
        if time.monotonic() - started > EVOLVED_WITHIN_S:
            break
        if found["waits_for"]:
            say(f"{name} waits for {found['waits_for']}")
        time.sleep(_LOOK_AT_EVOLUTION_S)
        record = operations.query(name)
    record = operations.query(name)  # it may have changed between the two questions
    is_done = found is None or found["state"] not in _UNDER_WAY
    if as_json:
        _print_json({**_summary(record), "evolution": found})
    elif is_done:
        beside = f"; version {found['version']} runs beside it, unread" if found is not None else ""
        typer.echo(f"{name} gives the results of version {record.version}, revision {record.revision}{beside}")
    else:
        assert found is not None, "it is under way"
        why = f"it waits for {found['waits_for']}" if found["waits_for"] else f"it is {found['state'].replace('_', ' ')}"
        typer.echo(f"{name} goes on in the background: {why}; see boreal query show {name}")
    raise typer.Exit(0 if is_done else 1)


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
        "version": record.version,
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
