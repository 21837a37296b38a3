"""Errors that say what is wrong, where, and how to correct it.

The class says which side is at fault: the user's query, option or data (`UserError`), a peer that broke the protocol
(`ProtocolError`), an installed operator (`OperatorError`), or stored bytes that are damaged (`CorruptError`). A broken
invariant of this program is an `AssertionError`.
"""

from __future__ import annotations

from dataclasses import dataclass


class BorealError(Exception):
    """Base class of all errors that boreal raises deliberately."""


@dataclass
class UserError(BorealError):
    """A query, option or input that cannot be accepted."""

    field: str
    """The path of the wrong field, such as `operators.late.where`, or the option, such as `--rate`."""
    value: object
    """The value of the field, as the user wrote it; None if there is none."""
    problem: str
    """What is wrong, as the predicate of a sentence about the field."""
    fix: str
    """What to write instead."""

    def __str__(self) -> str:
        return f"{self.field}: {self.problem} (got {self.value!r}); {self.fix}"

    def to_dict(self) -> dict[str, object]:
        """The JSON object of the error, as `--json` and the API show it: {field, value, problem, fix}."""
        value = self.value if isinstance(self.value, (str, int, float, bool, type(None), list, dict)) else str(self.value)
        return {"field": self.field, "value": value, "problem": self.problem, "fix": self.fix}


class ProtocolError(BorealError):
    """A frame or message that breaks the protocol."""


class OperatorError(BorealError):
    """An operator of an installed package has raised an error, or broken the contract of operators: the package is at fault."""


class CorruptError(BorealError):
    """Stored bytes (a frame, a checkpoint) whose checksum, version or shape is wrong."""
