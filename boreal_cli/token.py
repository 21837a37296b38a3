"""`boreal token`: the tokens of callers of the API."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from boreal_cli import options

if TYPE_CHECKING:
    from api.tokens import Token, TokenStore

token = typer.Typer()

Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="The data directory of the API. Default: BOREAL_DATA, or ~/.local/share/boreal.",
        show_default=False,
    ),
]


@token.callback(invoke_without_command=True, epilog="Example: boreal token create me --role admin")
def _token(context: typer.Context) -> None:
    """Make, list and revoke tokens for callers of the API. Only their hashes are kept, in the data directory of the API."""
    options.show_help_alone(context)


@token.command(epilog="Example: boreal token create grafana --role viewer --expires 90d")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the token is for.", show_default=False)],
    roles: Annotated[
        list[str] | None,
        typer.Option("--role", metavar="ROLE", help="viewer, operator, admin or chaos; may be repeated. Default: viewer."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="D", help="How long it is valid, such as 12h. Default: for ever.", show_default=False)
    ] = None,
    data: Data = None,
    as_json: options.Json = False,
) -> None:
    """Make a token, and print it. It is shown only now."""
    from api.tokens import Role
    from boreal.model.durations import parse_duration
    from boreal.model.errors import UserError
    from boreal.query.refusals import did_you_mean

    known = {role.value: role for role in Role}
    for role in roles or ():
        if role not in known:
            raise UserError("--role", role, "is not a role", did_you_mean(role, known))
    for_s = None if expires is None else parse_duration(expires, "--expires") / 1e6
    made, text = _store(data).create(name, [known[role] for role in roles or ["viewer"]], for_s)
    if as_json:
        typer.echo(json.dumps({**_shown(made), "token": text}, indent=2))
    else:
        typer.echo(text)


@token.command("list", epilog="Example: boreal token list")
def list_(data: Data = None, as_json: options.Json = False) -> None:
    """List the tokens, without what they are."""
    shown = [_shown(each) for each in _store(data).tokens()]
    if as_json:
        typer.echo(json.dumps({"tokens": shown}, indent=2))
        return
    for each in shown:
        until = f", until {each['expires']}" if each["expires"] else ""
        typer.echo(f"{each['id']}  {each['name']}  {', '.join(each['roles'])}{until}")


@token.command(epilog="Example: boreal token revoke grafana")
def revoke(
    name: Annotated[str, typer.Argument(metavar="TOKEN", help="Its id, or the name of one or several.", show_default=False)],
    data: Data = None,
    as_json: options.Json = False,
) -> None:
    """Revoke a token. The API refuses it from its next request on."""
    revoked = [_shown(each) for each in _store(data).revoke(name)]
    if as_json:
        typer.echo(json.dumps({"revoked": revoked}, indent=2))
    else:
        typer.echo("\n".join(f"{each['id']} is revoked" for each in revoked))


def _store(data: Path | None) -> TokenStore:
    from api.tokens import TokenStore
    from services.stack.state import default_data

    return TokenStore(data or default_data())


def _shown(each: Token) -> dict[str, Any]:
    def moment(at_ms: float | None) -> str | None:
        return None if at_ms is None else datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="seconds")

    made = {"created": moment(each.created_ms), "expires": moment(each.expires_ms)}
    return {"id": each.id, "name": each.name, "roles": list(each.roles), **made}
