"""`boreal dlq`: the records that a query's sources have refused, and the way back in, through the API of an installation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from boreal_cli import options, stack
from boreal_cli.history import parse_time

dlq = typer.Typer()

Stream = Annotated[
    str | None, typer.Option("--stream", metavar="STREAM", help="Only those of this stream.", show_default=False)
]
Reason = Annotated[
    str | None,
    typer.Option("--reason", metavar="TEXT", help="Only those whose reason holds this text.", show_default=False),
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only those refused since then, in ISO 8601.", show_default=False),
]


def add_to(app: typer.Typer) -> None:
    """Register the commands of this module."""
    app.add_typer(dlq, name="dlq")


@dlq.callback(invoke_without_command=True, epilog="Example: boreal dlq show departures")
def _dlq(context: typer.Context) -> None:
    """Show the records that a query has refused, its dead letters, and put them back after a fix."""
    options.show_help_alone(context)


@dlq.command(epilog="Example: boreal dlq show departures --reason late")
def show(
    name: stack.Name,
    stream: Stream = None,
    reason: Reason = None,
    since: Since = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=1_000, help="How many to show, the newest first.")
    ] = 20,
    data: stack.Data = None,
    as_json: options.Json = False,
) -> None:
    """Show the newest dead letters of a query: when, whence and why each record was refused, and the record."""
    from boreal_cli.through_api import reached_api

    choice = {"stream": stream, "reason": reason, "since_ms": _since_ms(since)}
    with reached_api(data) as api:
        found = api.dead_letters(name, limit, **choice)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        _show(found["dead_letters"])
        if found["looked_back_to_ms"] is not None:
            stack.to_stderr("there are more than could be looked at: give --since to see others")


@dlq.command(epilog="Example: boreal dlq replay departures --stream jfk --reason 'ahead of the clock'")
def replay(
    name: stack.Name,
    stream: Stream = None,
    reason: Reason = None,
    since: Since = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="At most so many now, the oldest first.")
    ] = 1_000,
    data: stack.Data = None,
    as_json: options.Json = False,
) -> None:
    """Put refused records back into their streams' topics, each at most once, however often this is called.

    Those whose reason a fix has taken away become rows. The others are refused again.
    """
    from boreal_cli.through_api import reached_api

    choice = {"stream": stream, "reason": reason, "since_ms": _since_ms(since), "limit": limit}
    with reached_api(data) as api:
        found = api.replay_dead_letters(name, {key: value for key, value in choice.items() if value is not None})
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    typer.echo(f"{_count(found['replayed'], 'record')} put back")
    for each in found["left"]:
        typer.echo(f"{_count(each['letters'], 'letter')} left: {each['reason']}")


def _since_ms(since: str | None) -> float | None:
    moment = parse_time("--since", since)
    return None if moment is None else moment / 1_000


def _show(letters: Sequence[Mapping[str, Any]]) -> None:
    """Two lines for each: records are too long for a table."""
    from rich.console import Console
    from rich.text import Text

    from formats.json_text import moment

    console = Console(highlight=False, soft_wrap=True)
    if not letters:
        console.print(Text("there are none"))
    for each in letters:
        place = f"{each['topic']}/{each['partition']} at {each['offset']}" if each["offset"] >= 0 else "posted"
        done = Text("  put back", style="green") if each["replayed"] else Text("")
        reason = each["reason"] or "(the installation shows no rows, and no reasons, which may quote them)"
        console.print(Text(f"{moment(int(each['at_ms'] * 1_000))}  {each['stream']}, {place}: {reason}") + done)
        if each["record"]:
            console.print(Text(f"    {each['record']}", style="dim"))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
