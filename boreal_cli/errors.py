"""Errors on stderr: one red line for people or one JSON object for programs, with the field, the value and the fix."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer

from boreal.model.errors import BorealError, UserError

USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""The base class of all errors of a command line. Its name differs between versions of typer."""


def show(error: UserError, as_json: bool) -> None:
    """Print the error to stderr, in one line."""
    if as_json:
        print(json.dumps({"error": error.to_dict()}), file=sys.stderr)
        return
    value = "" if error.value is None else f" {error.value!r}"
    typer.secho(f"error: {error.field}{value}: {error.problem}; {error.fix}", fg=typer.colors.RED, err=True)


def show_broken(error: AssertionError | BorealError, as_json: bool) -> None:
    """Print an error that the user did not cause: a broken invariant, or damaged stored bytes."""
    if not as_json:
        traceback.print_exception(error)
    problem = f"an invariant is broken: {error}" if isinstance(error, AssertionError) else str(error)
    show(UserError("run", None, problem, "this is a bug in boreal: report it, with the command that you ran"), as_json)


def from_usage(error: Any, arguments: Sequence[str]) -> UserError:
    """The error that typer found in the command line, as a UserError."""
    context = getattr(error, "ctx", None)
    see = f"see {context.command_path if context else 'boreal'} --help"
    option = getattr(error, "option_name", None)
    parameter = getattr(error, "param", None)
    if option is not None:
        near = getattr(error, "possibilities", None)
        fix = f"did you mean {' or '.join(near)}? Or {see}" if near else see
        return UserError(option, None, _sentence(error.message), fix)
    if parameter is None:
        return UserError("command line", " ".join(arguments), _sentence(error.message), see)
    name = max(parameter.opts, key=len) if parameter.param_type_name == "option" else parameter.metavar or parameter.name
    value = _given(name, arguments)
    if not error.message:
        wanted = f"{name} {parameter.metavar}" if name.startswith("-") else name
        return UserError(name, value, "is missing", f"add {wanted}; {see}")
    if "valid integer" in error.message:
        return UserError(name, value, "is not a whole number", f"write a whole number; {see}")
    return UserError(name, value, _sentence(error.message), see)


def _sentence(text: str) -> str:
    return text.rstrip(".").replace("\n", " ")


def _given(name: str, arguments: Sequence[str]) -> str | None:
    """The value of an option on the command line; None if there is none."""
    for place, argument in enumerate(arguments):
        if argument.startswith(f"{name}="):
            return argument.partition("=")[2]
        if argument == name and place + 1 < len(arguments):
            return arguments[place + 1]
    return None
