"""The options that several commands share, each with its name, its place-holder and its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def show_help_alone(context: typer.Context) -> None:
    """A group of commands that is given none of them shows what it has, and ends with 2."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


QueryFile = Annotated[Path, typer.Argument(metavar="QUERY", help="The query: a YAML or JSON file.", show_default=False)]
Sources = Annotated[
    list[str] | None,
    typer.Option(
        "--source",
        metavar="STREAM=PATH",
        help="Where a stream's tuples come from: a .csv, .jsonl or .parquet file, or generate:RATE,SECONDS[,KEYS]. "
        "Once for each stream.",
        show_default=False,
    ),
]
Faults = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        metavar="FAULT",
        help="What goes wrong, and when: 'cut jfk at 5s for 10s', 'crash main.r0 at 5s for 3s', 'stop jfk at 5s', ...",
        show_default=False,
    ),
]
Rate = Annotated[
    str | None,
    typer.Option(metavar="N/s", help="Tuples a second, over all streams together. Default: 10000/s.", show_default=False),
]
Speed = Annotated[
    str | None, typer.Option(metavar="Nx", help="Event time over run time, instead of --rate.", show_default=False)
]
ModeName = Annotated[
    str | None,
    typer.Option(
        "--mode",
        metavar="MODE",
        help="How to go back and redo: checkpoint_redo, undo_redo or overlay_redo. Default: the query's.",
        show_default=False,
    ),
]
PolicyText = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="F/S",
        help="suspend, delay or process: during a failure / during the stabilization. Default: the query's.",
        show_default=False,
    ),
]
DelayThreshold = Annotated[
    str | None,
    typer.Option(metavar="D", help="X, such as 3s. Default: the query's.", show_default=False),
]
Replicas = Annotated[int | None, typer.Option(metavar="N", help="Replicas of each fragment.", show_default=False)]
Shards = Annotated[int | None, typer.Option(metavar="N", help="Shards of each fragment.", show_default=False)]
EngineName = Annotated[
    str | None, typer.Option("--engine", metavar="native", help="Run a query natively that asks for spark.", show_default=False)
]
ClockName = Annotated[str, typer.Option("--clock", metavar="real|skip", help="Let time pass, or jump over idle waiting.")]
Seed = Annotated[
    int | None,
    typer.Option(
        metavar="K",
        help="Charge work by a model, so that the run repeats exactly (not with --clock real); seeds generated tuples too.",
        show_default=False,
    ),
]
RunData = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Keep logs and checkpoints in files, DIR/logs and DIR/checkpoints, and leave them there. Default: in memory.",
        show_default=False,
    ),
]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Where the results are written.", show_default=False)]
Force = Annotated[bool, typer.Option("--force", help="Replace what an older run wrote to DIR.")]
Json = Annotated[bool, typer.Option("--json", help="Write the result as JSON to stdout, and errors as JSON to stderr.")]
