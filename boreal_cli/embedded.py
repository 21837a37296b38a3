"""The commands that start an embedded installation and show how it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from boreal.model.errors import UserError
from boreal_cli import errors


def up(data: Path, port: int | None, allow_chaos: bool, is_demo: bool, as_json: bool) -> None:
    """Start the installation in `data`, if it does not run, and print its link."""
    from services.stack.embedded import EmbeddedFailed, EmbeddedStack

    stack = EmbeddedStack(data)
    try:
        was_down = stack.up(port, allow_chaos or is_demo, is_demo)
    except EmbeddedFailed as error:
        fix = "correct it and run the command again"
        errors.show(UserError("stack", str(data), str(error), fix), as_json)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(stack.status(), indent=2))
        return
    typer.echo(f"{'boreal is up' if was_down else 'boreal is already up'}, embedded, in {data}")
    typer.echo(f"  Open  {stack.link}")
    typer.echo("The link holds the token of this installation. Next: boreal status, boreal down")


def status_of(data: Path) -> dict[str, Any] | None:
    """The status of the embedded installation in `data`; None if there is none."""
    if not (data / "stack.json").is_file():
        return None
    from services.stack.embedded import EmbeddedStack

    stack = EmbeddedStack(data)
    return stack.status() if stack.exists else None
