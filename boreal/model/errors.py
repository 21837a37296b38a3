"""Errors that say what is wrong, where, and how to mend it.

Blame decides the class: the user's spec, option or data (`UserError`), the peer that sent us something which the
protocol forbids (`ProtocolError`), or a stored thing that does not check out (`CorruptError`). A broken invariant of
our own is an `AssertionError`, raised where it is noticed.
"""

from __future__ import annotations

from dataclasses import dataclass


class BorealError(Exception):
    """Base of all errors that boreal raises on purpose."""


@dataclass
class UserError(BorealError):
    """A query, option or input that cannot be accepted.

    field: dotted path of what is wrong, e.g. `operators.late.where` or `--rate`.
    value: what was given there. problem: one sentence. fix: what to write instead.
    """

    field: str
    value: object
    problem: str
    fix: str

    def __str__(self) -> str:
        return f"{self.field}: {self.problem} (got {self.value!r}); {self.fix}"

    def to_dict(self) -> dict[str, object]:
        """The shape that `--json` and the API print: {field, value, problem, fix}."""
        value = self.value if isinstance(self.value, (str, int, float, bool, type(None), list, dict)) else str(self.value)
        return {"field": self.field, "value": value, "problem": self.problem, "fix": self.fix}


class ProtocolError(BorealError):
    """A frame or message that a correct peer cannot have sent."""


class CorruptError(BorealError):
    """Stored bytes (a frame, a checkpoint) whose checksum, version or shape is wrong."""
