"""`boreal failures` and `boreal events`: what happened to the queries of an installation, as its API tells it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from boreal_cli import options, stack

Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=500, help="How many to show, the newest first.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands of this module."""
    app.command(epilog="Example: boreal failures departures")(failures)
    app.command(epilog="Example: boreal events --query departures --kind changed")(events)


def failures(
    name: stack.Name,
    id: Annotated[str | None, typer.Argument(metavar="[ID]", help="A failure, to see it in full.", show_default=False)] = None,
    limit: Limit = 20,
    data: stack.Data = None,
    as_json: options.Json = False,
) -> None:
    """List the failures of a query, or show one: its parts, what it cost clients, and how it went at each instance."""
    from boreal_cli import happened_tables
    from boreal_cli.through_api import reached_api

    with reached_api(data) as api:
        found = api.failures(name, limit) if id is None else api.failure(name, id)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    elif id is None:
        happened_tables.show_failures(found["failures"])
    else:
        happened_tables.show_failure(found)


def events(
    query: Annotated[
        str | None, typer.Option("--query", metavar="QUERY", help="Only of this query.", show_default=False)
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="KIND", help="Only of this kind, such as changed; may be repeated.", show_default=False),
    ] = None,
    limit: Limit = 20,
    data: stack.Data = None,
    as_json: options.Json = False,
) -> None:
    """List what happened, and who changed, made or broke what."""
    from boreal_cli import happened_tables
    from boreal_cli.through_api import reached_api

    with reached_api(data) as api:
        found: Mapping[str, Any] = api.events(query, kind or (), limit)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        happened_tables.show_events(found["events"])
