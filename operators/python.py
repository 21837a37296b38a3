"""Operators of installed packages, run by the contract of all operators: steps, layers, bytes and times are theirs for nothing.

What a class returns is checked as it comes: the columns that were promised, and times that the contract allows. All that goes
wrong in a class is an `OperatorError` with the operator's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from boreal.model.errors import OperatorError
from boreal.model.frames import INFINITY
from boreal.model.schema import Schema
from boreal.operators import Keyed, KeyedOperator, KeyState, RowOperator, WindowOperator
from boreal.query.own_operators import OwnOperator
from operators.accumulator_slots import AccumulatorSlot
from operators.groups import GroupLayout, Groups
from operators.keys import Keys, RowKey, sorting
from operators.state import NOTHING, Panes, Stateless
from operators.windows import Windows, open_panes

_SLOTS: Mapping[type, tuple[Any, pa.DataType]] = {
    int: (np.int64, pa.int64()),
    float: (np.float64, pa.float64()),
    bool: (np.bool_, pa.bool_()),
    str: (object, pa.string()),
    bytes: (object, pa.binary()),
}
"""By the type of its first value: how a column of state is held, and how it is encoded."""

Columns = list[np.ndarray]


@dataclass(frozen=True)
class CellLayout(GroupLayout):
    """The columns of a key's state: the key, then those that the operator declares."""

    cells: tuple[AccumulatorSlot, ...] = ()
    """The columns that the operator declares, in order."""

    @property
    def slots(self) -> tuple[AccumulatorSlot, ...]:
        return self.cells


def make_python_operator(name: str, own: OwnOperator, operator: str, parameters: Mapping[str, Any]) -> Any:
    """operator, parameters: as the query has them, by which the state is told from others."""
    match own.operator:
        case RowOperator() as made:
            return RowWiseOperator(name, own, made)
        case KeyedOperator() as made:
            return KeyWiseOperator(name, own, made, f"python {operator} {dict(parameters)}")
        case WindowOperator() as made:
            return WindowWiseOperator(name, own, made, f"python {operator} {dict(parameters)}")
    raise AssertionError(f"{own.operator!r} is of no known kind")


class _Guard:
    """Calls a class, and checks what it returns."""

    def __init__(self, name: str, own: OwnOperator) -> None:
        self._who = f"operators.{name}: {own.installed.name} of {own.installed.package} {own.installed.version}".rstrip()
        self._arrow = own.schema.arrow

    def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """What the method returns. OperatorError for whatever it raises."""
        try:
            return method(*arguments)
        except Exception as error:
            raise OperatorError(f"{self._who} has failed: {type(error).__name__}: {error}") from error

    def rows(self, given: pa.RecordBatch, made: Any) -> pa.RecordBatch:
        """What was made of given rows, if its columns are those that were promised, and its times rise from the first row's to
        the last row's at most: so none comes before its input, or where a boundary has passed."""
        if made is given and made.schema.equals(self._arrow):
            return made
        if isinstance(made, pa.BooleanArray):
            return self._kept(given, made)
        if not isinstance(made, pa.RecordBatch):
            raise OperatorError(f"{self._who} returned {type(made).__name__}, not a RecordBatch: make it by self.output")
        if not made.schema.equals(self._arrow):
            raise OperatorError(f"{self._who} returned the columns {_shown(made.schema)}, not {_shown(self._arrow)}")
        if made.num_rows:
            times, allowed = made.column(0), given.column(0)
            if not _is_same(times, allowed):
                self._check_times(times, allowed[0].as_py(), allowed[-1].as_py())
        return made

    def _kept(self, given: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
        if len(mask) != given.num_rows or not given.schema.equals(self._arrow):
            problem = f"a mask of {len(mask)} rows, for {given.num_rows} rows with the columns {_shown(given.schema)}"
            raise OperatorError(f"{self._who} returned {problem}, where it makes {_shown(self._arrow)}")
        return given.filter(mask)

    def _check_times(self, made: pa.Array, first: int, last: int) -> None:
        try:
            times = made.to_numpy()
        except pa.ArrowInvalid:
            raise OperatorError(f"{self._who} returned a row without a time") from None
        if times[0] < first or times[-1] > last or np.count_nonzero(times[1:] < times[:-1]):
            problem = "rows whose times do not rise from the time of the first row that it was given to that of the last"
            raise OperatorError(f"{self._who} returned {problem}: make them by self.output, in the order of the input")

    def columns(self, made: Any, schema: Schema, count: int) -> list[pa.Array]:
        """The columns that were made of so many keys, in the order of the schema."""
        if not isinstance(made, Mapping) or set(made) != set(schema.names):
            shown = sorted(map(str, made)) if isinstance(made, Mapping) else type(made).__name__
            raise OperatorError(f"{self._who} gave the results {shown}, not {sorted(schema.names)}")
        columns = []
        for name, kind in schema.columns:
            column = made[name]
            try:
                array = column if isinstance(column, pa.Array) else pa.array(column, kind.arrow)
            except (pa.ArrowException, TypeError, ValueError) as error:
                raise OperatorError(f"{self._who} gave {name} that is no {kind}: {error}") from error
            if array.type != kind.arrow or len(array) != count:
                problem = f"{len(array)} values of {array.type}, not {count} of {kind.arrow}"
                raise OperatorError(f"{self._who} gave {name} as {problem}")
            columns.append(array)
        return columns


class RowWiseOperator:
    """Runs a `RowOperator`."""

    def __init__(self, name: str, own: OwnOperator, made: RowOperator) -> None:
        self.name = name
        self.schema = own.schema
        self._process = made.process
        self._guard = _Guard(name, own)
        self._nothing = own.schema.empty()

    def empty(self) -> Stateless:
        return NOTHING

    def decode(self, blob: bytes) -> Stateless:
        return Stateless.decode(blob)

    def step(self, state: Stateless, batches: tuple[pa.RecordBatch, ...], upto: int) -> pa.RecordBatch:
        (batch,) = batches
        return self._guard.rows(batch, self._guard.call(self._process, batch)) if batch.num_rows else self._nothing

    def needs(self, time: int) -> int:
        return time


class _Keeper:
    """What operators with state share: the layout of the state, and its way to the class and back."""

    def __init__(self, name: str, own: OwnOperator, kind: str) -> None:
        keyed = own.keyed
        assert keyed is not None
        self.name = name
        self.schema = own.schema
        self.windows = None if own.window_us is None else Windows(own.window_us, own.window_us)
        given = own.operator.given
        self._by = tuple(keyed.by)
        self._names = tuple(keyed.columns)
        self._guard = _Guard(name, own)
        self._nothing = own.schema.empty()
        self.layout = CellLayout(Keys.of(given, keyed.by, f"operators.{name}.python"), (), _slots(keyed))
        cells = [(column, type(value).__name__, value) for column, value in keyed.columns.items()]
        keys = [(column, given.types[column]) for column in keyed.by]
        self._kind = f"{kind} {own.operator.state_version} {keys} {cells} {own.window_us}"

    def empty(self) -> Panes[Groups]:
        return Panes(self._kind, Groups.encode)

    def decode(self, blob: bytes) -> Panes[Groups]:
        state = self.empty().decode(blob, partial(Groups.decode, self.layout))
        if self.windows is not None:
            self.windows.restore(state)
        return state

    def needs(self, time: int) -> int:
        return -INFINITY if self.windows is None else min(time, self.windows.first_start(time))

    def _each_pane(
        self, state: Panes[Groups], batch: pa.RecordBatch, take: Callable[[pa.RecordBatch, KeyState], None]
    ) -> None:
        """Let the class take the rows of each pane, with the state of their keys."""
        for pane, begin, end in open_panes(self.windows, state, batch):
            rows = batch if end - begin == batch.num_rows else batch.slice(begin, end - begin)
            keys, codes = self.layout.keys.encode(rows)
            groups = state.change(pane, partial(Groups, self.layout))
            places = groups.touch(keys)
            held = [column[places] for column in groups.columns]
            with np.errstate(all="ignore"):
                take(rows, self._seen(codes, held, keys))
            for column, changed in zip(groups.columns, held, strict=True):
                column[places] = changed

    def _seen(self, codes: np.ndarray, held: Columns, keys: list[RowKey]) -> KeyState:
        def read() -> dict[str, pa.Array]:
            return dict(zip(self._by, self.layout.keys.arrays(keys), strict=True))

        return KeyState(codes, dict(zip(self._names, held, strict=True)), read)


class KeyWiseOperator(_Keeper):
    """Runs a `KeyedOperator`."""

    def __init__(self, name: str, own: OwnOperator, made: KeyedOperator, kind: str) -> None:
        super().__init__(name, own, kind)
        self._process = made.process

    def step(self, state: Panes[Groups], batches: tuple[pa.RecordBatch, ...], upto: int) -> pa.RecordBatch:
        (batch,) = batches
        made: list[pa.RecordBatch] = []

        def take(rows: pa.RecordBatch, seen: KeyState) -> None:
            made.append(self._guard.rows(rows, self._guard.call(self._process, rows, seen)))

        if batch.num_rows:
            self._each_pane(state, batch, take)
        if self.windows is not None and upto >= state.next_close:
            self.windows.close(state, upto)
        state.upto = upto
        if len(made) == 1:
            return made[0]
        return pa.concat_batches(made) if made else self._nothing


class WindowWiseOperator(_Keeper):
    """Runs a `WindowOperator`. Results are sorted by the key's columns: ascending, nulls first (R5)."""

    def __init__(self, name: str, own: OwnOperator, made: WindowOperator, kind: str) -> None:
        super().__init__(name, own, kind)
        self._collect, self._finish = made.collect, made.result

    def step(self, state: Panes[Groups], batches: tuple[pa.RecordBatch, ...], upto: int) -> pa.RecordBatch:
        (batch,) = batches
        assert self.windows is not None
        if batch.num_rows:
            self._each_pane(state, batch, lambda rows, seen: self._guard.call(self._collect, rows, seen))
        if upto < state.next_close:
            state.upto = upto
            return self._nothing
        results = [self._result(end, groups) for end, [groups] in self.windows.close(state, upto)]
        return results[0] if len(results) == 1 else pa.concat_batches(results)

    def _result(self, end: int, groups: Groups) -> pa.RecordBatch:
        assert self.windows is not None
        keys, columns = groups.content()
        if len(keys) > 1 and self._by:
            order = sorting([(column, False) for column in self.layout.keys.arrays(keys)], "at_start")
            keys = [keys[row] for row in order]
            columns = [column[order] for column in columns]
        held = [column.copy() for column in columns]
        seen = self._seen(np.empty(0, np.intp), held, keys)
        with np.errstate(all="ignore"):
            made = self._guard.columns(self._guard.call(self._finish, seen), self.schema, len(keys))
        edges = [pa.array(np.full(len(keys), edge)) for edge in (end - 1, end - self.windows.size, end)]
        return pa.RecordBatch.from_arrays([*edges, *made], schema=self.schema.arrow)


def _slots(keyed: Keyed) -> tuple[AccumulatorSlot, ...]:
    slots = []
    for value in keyed.columns.values():
        dtype, arrow = _SLOTS[type(value)]
        slots.append(AccumulatorSlot(dtype, value, arrow))
    return tuple(slots)


def _is_same(one: pa.Array, other: pa.Array) -> bool:
    """Whether two arrays of ints are one in memory."""
    if len(one) != len(other) or one.offset != other.offset:
        return False
    mine, theirs = one.buffers(), other.buffers()
    return mine[0] is None and theirs[0] is None and mine[1].address == theirs[1].address


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
