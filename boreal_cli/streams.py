"""`boreal stream`: what the queries of an installation read, through its API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from boreal_cli import options, stack

stream = typer.Typer()


def add_to(app: typer.Typer) -> None:
    """Register the commands of this module."""
    app.add_typer(stream, name="stream")


@stream.callback(invoke_without_command=True, epilog="Example: boreal stream list")
def _stream(context: typer.Context) -> None:
    """Show what the queries read."""
    options.show_help_alone(context)


@stream.command("list", epilog="Example: boreal stream list")
def list_(data: stack.Data = None, as_json: options.Json = False) -> None:
    """List the topics that queries read, and who reads each of them."""
    from boreal_cli.through_api import reached_api

    with reached_api(data) as api:
        found = api.readers()
    if as_json:
        typer.echo(json.dumps({"streams": found}, indent=2))
    elif not found:
        typer.echo("no query reads anything; boreal query apply FILE adds one")
    else:
        _show(found)


def _show(streams: Sequence[Mapping[str, Any]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table("records", "read by", "source", "state", "lag", "dead letters", box=SIMPLE_HEAD)
    for each in streams:
        records = each["records"] if each["alike"] else f"{each['records']} (described differently)"
        for number, reader in enumerate(each["readers"]):
            lag = "-" if reader["lag_records"] is None else f"{reader['lag_records']:,}"
            letters = "-" if reader["dlq"] is None else f"{reader['dlq']:,}"
            name = f"{reader['query']}.{reader['stream']}"
            table.add_row("" if number else records, name, reader["source"], reader["state"], lag, letters)
    Console(highlight=False).print(table)
