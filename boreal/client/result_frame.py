"""Results as a table, for notebooks: rows in Arrow or pandas.

Pure, but it imports pyarrow, and pandas where one is asked for; both only on first use, since other readers do without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, assert_never

from boreal.client.changes import Boundary, Change, Missing, RecDone, Stable, Tentative, Undo
from boreal.client.view import View
from boreal.model.errors import UserError

if TYPE_CHECKING:
    import pandas
    import pyarrow as pa

VIEWS = ("stable", "latest", "changes")
TIMES = ("time", "window_start", "window_end")
"""The columns of a row that are always moments. No other column of a query has one of these names."""

FACTS = {
    "stable": {},
    "latest": {"_tentative": "bool", "_missing_inputs": "names", "_cause": "string"},
    "changes": {
        "_type": "string",
        "_id": "int",
        "_last_id": "int",
        "_event_time": "timestamp",
        "_through": "timestamp",
        "_tentative": "bool",
        "_revoked": "int",
        "_missing_inputs": "names",
        "_cause": "string",
        "_site": "string",
    },
}
"""The columns of each view beside those of the rows, and their types.

_type: stable, tentative, undo, boundary, rec_done, or missing (stable rows that are no longer kept).
_id: the number of a stable row in the output; of the first row that is missing. _last_id: of the last one that is.
_event_time: of a row. _through: how far a boundary has come.
_tentative: whether the row, or the boundary, may yet be taken back.
_revoked: how many rows an undo takes back: all tentative ones since the undo before it.
_missing_inputs, _cause: why a row or a boundary is tentative. _site: where a row was read.
"""


@dataclass(frozen=True, slots=True)
class ResultFrame:
    """Results as a table: `to_arrow()` or `to_pandas()`."""

    columns: dict[str, list[Any]]
    """The values of each column, as JSON has them; moments of TIMES as text."""
    types: Mapping[str, str]
    """The types that are known, as a query file names them; the others follow from the values."""
    n_rows: int
    """The number of rows."""

    def __len__(self) -> int:
        return self.n_rows

    def to_arrow(self) -> pa.Table:
        """The rows, in their order. A column of unknown type that holds only nulls has Arrow's type `null`."""
        import pyarrow as pa

        return pa.table({name: self._array(name, values) for name, values in self.columns.items()})

    def to_pandas(self) -> pandas.DataFrame:
        """The rows, in their order. UserError if pandas is not installed."""
        try:
            import pandas  # noqa: F401
        except ImportError:
            raise UserError(
                "to_pandas", None, "needs pandas, which is not installed", "pip install pandas, or use to_arrow()"
            ) from None
        return self.to_arrow().to_pandas()

    def _array(self, name: str, values: list[Any]) -> pa.Array:
        import pyarrow as pa

        from boreal.model.schema import Type

        kind = self.types.get(name)
        arrow = None if kind is None else pa.list_(pa.string()) if kind == "names" else Type(kind).arrow
        try:
            if kind == "timestamp":
                values = [_moment(value) for value in values]
            elif kind == "date":
                values = [None if value is None else date.fromisoformat(value) for value in values]
            elif arrow is not None and pa.types.is_decimal(arrow):
                values = [None if value is None else Decimal(value) for value in values]
            return pa.array(values, arrow)
        except (pa.ArrowInvalid, pa.ArrowTypeError, InvalidOperation, TypeError, ValueError) as error:
            raise UserError(
                f"types.{name}", kind, f"does not fit the values ({error})", "name the type that the query gives it"
            ) from None


def check_frame(view: str, types: Mapping[str, str]) -> None:
    """Refuse an unknown view or type, before anything is read."""
    if view not in VIEWS:
        raise UserError("view", view, "is not a view", f"choose one of {', '.join(VIEWS)}")
    if not types:
        return
    from boreal.model.schema import PLAIN_TYPES, Type

    for name, kind in types.items():
        try:
            Type(kind)
        except ValueError:
            choices = ", ".join(PLAIN_TYPES)
            raise UserError(f"types.{name}", kind, "is not a type", f"choose one of {choices}, or decimal(p, s)") from None


def frame_of_rows(rows: Iterable[dict[str, Any]], types: Mapping[str, str]) -> ResultFrame:
    """The frame of view `stable`. types: of the rows' columns, as far as they are known, by name."""
    return _frame("stable", [({}, row) for row in rows], types)


def frame_of_view(view: View[dict[str, Any]], types: Mapping[str, str]) -> ResultFrame:
    """The frame of view `latest`: one row for each key."""
    return _frame("latest", [(_facts(row), row.data) for row in view.values()], types)


def frame_of_changes(changes: Iterable[Change[dict[str, Any]]], types: Mapping[str, str]) -> ResultFrame:
    """The frame of view `changes`: one row for each change."""
    return _frame("changes", [(_facts(change), getattr(change, "data", {})) for change in changes], types)


def _frame(view: str, held: list[tuple[dict[str, Any], dict[str, Any]]], types: Mapping[str, str]) -> ResultFrame:
    facts = FACTS[view]
    names = dict.fromkeys(types)
    for _, row in held:
        names.update(dict.fromkeys(row))
    if clash := sorted(names.keys() & facts.keys()):
        raise UserError("view", view, f"has a column {clash[0]} of its own, and so has the query", "rename the query's column")
    columns = {name: [row.get(name) for _, row in held] for name in names}
    columns |= {name: [fields.get(name) for fields, _ in held] for name in facts}
    return ResultFrame(columns, {**dict.fromkeys(TIMES, "timestamp"), **facts, **types}, len(held))


def _facts(change: Change[Any]) -> dict[str, Any]:
    match change:
        case Stable():
            of_row = {"_type": "stable", "_id": change.id, "_tentative": False, "_missing_inputs": []}
            return {**of_row, "_event_time": change.event_time, "_site": change.site}
        case Tentative():
            of_row = {"_type": "tentative", "_tentative": True, "_event_time": change.event_time, "_site": change.site}
            return {**of_row, "_missing_inputs": list(change.missing_inputs), "_cause": change.cause}
        case Undo():
            return {"_type": "undo", "_revoked": len(change.revoked), "_cause": change.cause}
        case Boundary():
            why = {"_missing_inputs": list(change.missing_inputs), "_cause": change.cause}
            return {"_type": "boundary", "_through": change.through, "_tentative": change.tentative, **why}
        case RecDone():
            return {"_type": "rec_done", "_cause": change.cause}
        case Missing():
            return {"_type": "missing", "_id": change.first_id, "_last_id": change.last_id}
        case _:
            assert_never(change)


def _moment(value: object) -> object:
    return datetime.fromisoformat(value).astimezone(UTC) if isinstance(value, str) else value
