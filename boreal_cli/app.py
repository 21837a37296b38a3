"""The commands: their options, and the functions that they call. Large imports are in the commands, so that `--help` is fast.

Exit status: 0 success; 1 the command ran, but its result is not good; 2 the query, an option or the input is not valid;
130 interrupted.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import typer

from boreal.model.errors import BorealError, UserError
from boreal_cli import dead_letters, errors, happened, history, options, stack, streams, token, worker

INTERRUPTED = 130

app = typer.Typer(
    name="boreal",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. arguments: the command line, by default that of the process. Returns the exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    as_json = "--json" in given
    try:
        status = app(given, prog_name="boreal", standalone_mode=False) or 0
    except UserError as error:
        errors.show(error, as_json)
        status = 2
    except errors.USAGE_ERROR as error:
        errors.show(errors.from_usage(error, given), as_json)
        status = 2
    except ModuleNotFoundError as error:
        errors.show(stack.missing(error), as_json)
        status = 2
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has closed the pipe. Python must not flush the rest into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except (AssertionError, BorealError) as error:
        errors.show_broken(error, as_json)
        status = 1
    if status == INTERRUPTED:
        typer.secho("interrupted", err=True)
    return int(status)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"boreal {version('boreal')}")
        except PackageNotFoundError:
            typer.echo("boreal, run from a checkout")
        raise typer.Exit


@app.callback(
    invoke_without_command=True,
    epilog="Example: boreal run query.yaml --source jfk=jfk.csv --fault 'cut jfk at 5s for 10s' --out out/jfk",
)
def _boreal(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A stream processor that answers within X while inputs fail, and corrects every answer after the failure."""
    options.show_help_alone(context)


@app.command(
    epilog="Example: boreal run departures.yaml --source ewr=ewr.csv --source jfk=jfk.csv --source lga=lga.csv "
    "--fault 'cut jfk at 1s for 2s' --out out/departures"
)
def run(
    query: options.QueryFile,
    out: options.Out,
    source: options.Sources = None,
    rate: options.Rate = None,
    speed: options.Speed = None,
    fault: options.Faults = None,
    mode: options.ModeName = None,
    policy: options.PolicyText = None,
    delay_threshold: options.DelayThreshold = None,
    replicas: options.Replicas = None,
    shards: options.Shards = None,
    engine: options.EngineName = None,
    clock: options.ClockName = "skip",
    seed: options.Seed = None,
    data: options.RunData = None,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Run a query over files or generated tuples in this process, with scripted faults.

    The command writes stable.jsonl (the final results), changes.jsonl (all that a client saw), dlq.jsonl (rejected input)
    and report.json to DIR. Exit status 1: a replica did not end STABLE.
    """
    from boreal_cli import progress, tables
    from embedded import run_folder
    from embedded.session import RunOptions, make_session

    run_folder.check(out, force)
    if data is not None:
        run_folder.check_data(data)
    asked = RunOptions(
        faults=fault or (),
        rate=rate,
        speed=speed,
        mode=mode,
        policy=policy,
        delay_threshold=delay_threshold,
        replicas=replicas,
        shards=shards,
        engine=engine,
        clock=clock,
        seed=seed,
    )
    session = make_session(query, source or (), asked)
    run_folder.prepare(out)
    with progress.following(session, as_json) as view:
        outcome = session.run(out, data=data, watch=view.watch, tap=view.tap)
    if as_json:
        _print_json(outcome.report)
    else:
        tables.show_run(outcome, session, out)
    raise typer.Exit(0 if outcome.is_stable else 1)


@app.command(
    epilog="Example: boreal compare departures.yaml --source ewr=ewr.csv --source jfk=jfk.csv --source lga=lga.csv "
    "--fault 'cut jfk at 1s for 2s' --modes checkpoint_redo,overlay_redo --out out/compared"
)
def compare(
    query: options.QueryFile,
    out: options.Out,
    source: options.Sources = None,
    rate: options.Rate = None,
    speed: options.Speed = None,
    fault: options.Faults = None,
    modes: Annotated[str, typer.Option(metavar="all|M,...", help="The reconciliation modes to run.")] = "all",
    policies: Annotated[
        str, typer.Option(metavar="all|F/S,...", help="The policies to run. all: process or delay / process, delay or suspend.")
    ] = "all",
    delay_threshold: options.DelayThreshold = None,
    replicas: options.Replicas = None,
    shards: options.Shards = None,
    engine: options.EngineName = None,
    clock: options.ClockName = "skip",
    seed: options.Seed = None,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Run the same input and faults with several modes and policies, and compare the results.

    The command writes compare.json, compare.html, and a folder with the files of each run to DIR.
    """
    from boreal_cli import progress, tables
    from embedded import run_folder
    from embedded.compare import combinations, prepare_folder
    from embedded.compare import compare as compare_runs
    from embedded.session import RunOptions, make_session

    run_folder.check(out, force)
    asked = RunOptions(
        faults=fault or (),
        rate=rate,
        speed=speed,
        delay_threshold=delay_threshold,
        replicas=replicas,
        shards=shards,
        engine=engine,
        clock=clock,
        seed=seed,
    )
    session = make_session(query, source or (), asked)
    chosen, notes = combinations(session, modes, policies)
    prepare_folder(out)
    with progress.counting(session, len(chosen), as_json) as view:
        comparison = compare_runs(session, chosen, notes, out, lambda combination: view.next(str(combination)))
    if as_json:
        typer.echo(comparison.to_json(), nl=False)
    else:
        tables.show_comparison(comparison, out)
    raise typer.Exit(0 if comparison.is_stable else 1)


@app.command(
    epilog="Example: boreal verify departures.yaml --source ewr=ewr.csv --source jfk=jfk.csv --source lga=lga.csv "
    "--fault 'cut jfk at 1s for 2s'"
)
def verify(
    query: options.QueryFile,
    source: options.Sources = None,
    rate: options.Rate = None,
    speed: options.Speed = None,
    fault: options.Faults = None,
    mode: options.ModeName = None,
    policy: options.PolicyText = None,
    delay_threshold: options.DelayThreshold = None,
    replicas: options.Replicas = None,
    shards: options.Shards = None,
    engine: options.EngineName = None,
    clock: options.ClockName = "skip",
    seed: options.Seed = None,
    from_: history.From = None,
    to: history.To = None,
    data: stack.Data = None,
    as_json: options.Json = False,
) -> None:
    """Run a query with the faults and without them, and compare the stable outputs line by line.

    The command also replays the changelog of each run, which must result in the stable output. Exit status 1: there is a
    difference; 3: there is no stable row, so nothing was compared.

    QUERY can also be the name of a query on a stack. The stable results that its clients received are then compared with
    the results of a Spark batch job over the logs of its sources (--from, --to, --data).
    """
    of_file: dict[str, object] = {
        "--source": source,
        "--rate": rate,
        "--speed": speed,
        "--fault": fault,
        "--mode": mode,
        "--policy": policy,
        "--delay-threshold": delay_threshold,
        "--replicas": replicas,
        "--shards": shards,
        "--engine": engine,
        "--seed": seed,
    }
    if history.is_deployed(query, of_file, {"--from": from_, "--to": to, "--data": data}):
        history.verify_deployed(str(query), from_, to, data, as_json)

    from boreal_cli import progress, tables
    from embedded.session import RunOptions, make_session
    from embedded.verify import verify as verify_runs

    asked = RunOptions(
        faults=fault or (),
        rate=rate,
        speed=speed,
        mode=mode,
        policy=policy,
        delay_threshold=delay_threshold,
        replicas=replicas,
        shards=shards,
        engine=engine,
        clock=clock,
        seed=seed,
    )
    session = make_session(query, source or (), asked)
    with progress.counting(session, 2, as_json) as view:
        verdict = verify_runs(session, view.next)
    if as_json:
        typer.echo(verdict.to_json(), nl=False)
    else:
        tables.show_verdict(verdict)
    raise typer.Exit(tables.verify_status(verdict.holds, verdict.rows))


@app.command(epilog="Example: boreal sql departures.yaml")
def sql(query: options.QueryFile, as_json: options.Json = False) -> None:
    """Print a query in its other form: a YAML or JSON file in SQL, an SQL file in YAML.

    Both say the same, and all commands take either. Fields at their defaults are left out, and so are comments.
    """
    import yaml

    from boreal.query.planner import plan
    from boreal.query.spec import load_query
    from boreal.query.sql_reading import is_sql
    from boreal.query.sql_writing import write_sql

    spec = load_query(query)
    plan(spec)
    form = "yaml" if is_sql(query.read_text(encoding="utf-8")) else "sql"
    as_yaml = partial(yaml.safe_dump, sort_keys=False, allow_unicode=True, width=128)
    text = as_yaml(spec.written()) if form == "yaml" else write_sql(spec)
    if as_json:
        _print_json({"form": form, "text": text})
    else:
        typer.echo(text, nl=False)


@app.command(epilog="Example: boreal simulate --seeds 200")
def simulate(
    seeds: Annotated[int, typer.Option(metavar="N", min=1, help="The number of seeds to run.", show_default=False)],
    seed: Annotated[int, typer.Option(metavar="FIRST", min=0, help="The first seed.")] = 0,
    mutant: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Run with this known bug in the program, which a seed must find.", show_default=False
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Run random queries with random faults in virtual time, one for each seed, and check the invariants after each run.

    Exit status 1: a run violated an invariant. To repeat the run, use --seeds 1 --seed with its seed.
    """
    from boreal_cli import progress, tables
    from simulation.campaign import simulate as run_seeds

    result = run_seeds(seeds, seed, mutant, on_progress=progress.seeds(seeds))
    if as_json:
        _print_json(result)
    else:
        tables.show_campaign(result)
    raise typer.Exit(1 if result["violations"] else 0)


@app.command(epilog="Example: boreal bench core")
def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the benchmark, such as core.", show_default=False)],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Arguments of the benchmark, such as rate=2000 of evolution.", show_default=False
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Run a benchmark on this machine."""
    from bench.figures import print_table
    from boreal_cli.benches import arguments_of, find

    measure = find(name)
    result = measure(**arguments_of(measure, arguments or ()))
    if as_json:
        _print_json(result)
    else:
        print_table(result)


stack.add_to(app)
app.add_typer(token.token, name="token")
history.add_to(app)
happened.add_to(app)
dead_letters.add_to(app)
streams.add_to(app)
worker.add_to(app)


def _print_json(value: dict[str, Any]) -> None:
    typer.echo(json.dumps(value, indent=2))
