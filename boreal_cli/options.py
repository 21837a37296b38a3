"""The options that several commands share, each with its name, placeholder and help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def show_help_alone(context: typer.Context) -> None:
    """For a group of commands: without a command, print the help and exit with status 2."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


QueryFile = Annotated[Path, typer.Argument(metavar="QUERY", help="The query: a YAML, JSON or SQL file.", show_default=False)]
Sources = Annotated[
    list[str] | None,
    typer.Option(
        "--source",
        metavar="STREAM=PATH",
        help="The input of a stream: a .csv, .jsonl, .parquet or .arrow file, or generate:RATE,SECONDS[,KEYS]. "
        "Repeat the option for each stream.",
        show_default=False,
    ),
]
Faults = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        metavar="FAULT",
        help="A fault and its time: 'cut jfk at 5s for 10s', 'crash main.r0 at 5s for 3s', 'stop jfk at 5s', ...",
        show_default=False,
    ),
]
Rate = Annotated[
    str | None,
    typer.Option(metavar="N/s", help="Tuples per second, over all streams together. Default: 10000/s.", show_default=False),
]
Speed = Annotated[
    str | None, typer.Option(metavar="Nx", help="The ratio of event time to run time, instead of --rate.", show_default=False)
]
ModeName = Annotated[
    str | None,
    typer.Option(
        "--mode",
        metavar="MODE",
        help="The reconciliation mode: checkpoint_redo, undo_redo or overlay_redo. Default: the query's.",
        show_default=False,
    ),
]
PolicyText = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="F/S",
        help="The policy during a failure / during the stabilization: suspend, delay or process. Default: the query's.",
        show_default=False,
    ),
]
DelayThreshold = Annotated[
    str | None,
    typer.Option(metavar="D", help="X, the delay threshold, such as 3s. Default: the query's.", show_default=False),
]
Replicas = Annotated[int | None, typer.Option(metavar="N", help="The number of replicas of each fragment.", show_default=False)]
Shards = Annotated[int | None, typer.Option(metavar="N", help="The number of shards of each fragment.", show_default=False)]
EngineName = Annotated[
    str | None,
    typer.Option("--engine", metavar="native", help="Run a query for Spark with the native engine.", show_default=False),
]
ClockName = Annotated[
    str, typer.Option("--clock", metavar="real|skip", help="real: run in real time; skip: jump over idle time.")
]
Seed = Annotated[
    int | None,
    typer.Option(
        metavar="K",
        help="Use a model of the time of work, so that the run repeats exactly (not with --clock real). Also seeds generated "
        "tuples.",
        show_default=False,
    ),
]
RunData = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Keep logs and checkpoints in files, in DIR/logs and DIR/checkpoints. Default: keep them in memory.",
        show_default=False,
    ),
]
Out = Annotated[Path, typer.Option(metavar="DIR", help="The directory for the results.", show_default=False)]
Force = Annotated[bool, typer.Option("--force", help="Replace the files of an earlier run in DIR.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout, and errors as JSON on stderr.")]
