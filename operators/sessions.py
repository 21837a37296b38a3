"""The session aggregate: rows of a group that follow each other closely are one session, which ends with a gap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from boreal.model.columns import event_times
from boreal.model.errors import CorruptError
from boreal.model.frames import INFINITY
from boreal.model.schema import Schema
from boreal.query.expressions import parse_aggregation
from operators.accumulator_slots import AccumulatorColumns, AccumulatorSlot
from operators.accumulators import make_accumulator
from operators.arguments import Arguments
from operators.encoding import encode_batch, pack, unpack
from operators.groups import GroupLayout, Groups
from operators.keys import Keys, RowKey, sorting
from operators.state import NEVER

_EDGE = AccumulatorSlot(np.int64, 0, pa.int64())

_SLACK = 4096
"""A state is cleared of sessions that have ended when it has this many rows more than twice the open ones."""


@dataclass(frozen=True)
class SessionLayout(GroupLayout):
    """The columns of a session: those of a group, with its start and its end so far (us) before the accumulators'."""

    @property
    def slots(self) -> tuple[AccumulatorSlot, ...]:
        return (_EDGE, _EDGE, *(slot for entry in self.accumulators for slot in entry.slots))

    def shares(self, columns: AccumulatorColumns) -> list[AccumulatorColumns]:
        return super().shares(columns[2:])


class Sessions:
    """The last session of each group. It is open if its end is after `upto`; others are left where they are, and cleared away
    from time to time. So a session that ends is no change of the state."""

    __slots__ = ("groups", "next_close", "operator", "upto")

    def __init__(self, operator: SessionOperator, groups: Groups, upto: int, next_close: int) -> None:
        self.operator = operator
        self.groups = groups
        self.upto = upto
        self.next_close = next_close
        """No session ends before."""

    def ends(self, keys: Sequence[RowKey]) -> np.ndarray:
        """The end of each key's last session, before all times if there was none."""
        found = np.full(len(keys), -INFINITY)
        places: Sequence[int] = range(len(keys))
        layer: Groups | None = self.groups
        while layer is not None and places:
            rows = [layer.places.get(keys[place]) for place in places]
            here = [(place, row) for place, row in zip(places, rows, strict=True) if row is not None]
            found[[place for place, _ in here]] = layer.columns[1][[row for _, row in here]]
            places = [place for place, row in zip(places, rows, strict=True) if row is None]
            layer = layer.parent
        return found

    def ending(self, upto: int, going_on: set[RowKey]) -> tuple[list[RowKey], AccumulatorColumns]:
        """The sessions that end after the last step, up to `upto`, but for those of some keys."""
        keys: list[RowKey] = []
        columns: list[AccumulatorColumns] = []
        above: list[Groups] = []
        layer: Groups | None = self.groups
        while layer is not None:
            ends = layer.columns[1][: len(layer.places)]
            rows = np.flatnonzero((ends > self.upto) & (ends <= upto))
            if len(rows):
                names = list(layer.places)
                hidden = [names[row] in going_on or any(names[row] in other.places for other in above) for row in rows]
                rows = rows[~np.array(hidden)]
                keys += [names[row] for row in rows]
                columns.append([column[rows] for column in layer.columns])
            above.append(layer)
            layer = layer.parent
        fresh = [slot.fresh(0) for slot in self.groups.slots]
        return keys, [np.concatenate(parts) for parts in zip(fresh, *columns, strict=True)]

    def settle(self, upto: int) -> None:
        """The step is over."""
        self.upto = upto
        if upto < self.next_close:
            return
        self.next_close = NEVER
        layer: Groups | None = self.groups
        while layer is not None:
            ends = layer.columns[1][: len(layer.places)]
            self.next_close = min(int(np.min(ends, where=ends > upto, initial=INFINITY)), self.next_close)
            layer = layer.parent
        if self.groups.parent is None:
            self._clear_away()

    def _clear_away(self) -> None:
        groups = self.groups
        rows = np.flatnonzero(groups.columns[1][: len(groups.places)] > self.upto)
        if len(groups.places) > 2 * len(rows) + _SLACK:
            names = list(groups.places)
            groups.places = {names[row]: place for place, row in enumerate(rows)}
            groups.columns = [column[rows] for column in groups.columns]

    def overlay(self) -> Sessions:
        return Sessions(self.operator, self.groups.overlay(), self.upto, self.next_close)

    def absorb(self, child: Sessions) -> None:
        self.groups.absorb(child.groups)
        self.upto, self.next_close = child.upto, child.next_close

    def encode(self) -> bytes:
        return self.operator.encode(self)

    def nbytes(self) -> int:
        return self.groups.nbytes()


class SessionOperator:
    """Groups rows by the columns `by`, and into sessions: a row belongs to the session of its group's row before it if it comes
    less than `gap_us` after that.

    A session is [its first row's time, its last row's time + gap_us). Its row is output when upto reaches its end, with time =
    its end - 1 (R6); rows of one time are sorted as the aggregate's (R5). longest_us: a session also ends at each multiple of
    this, so that its state depends on no row before the last one (R20). Without it, it may depend on all earlier input.
    """

    def __init__(
        self,
        name: str,
        input_schema: Schema,
        gap_us: int,
        longest_us: int | None,
        by: tuple[str, ...],
        compute: Mapping[str, str],
    ) -> None:
        field = f"operators.{name}"
        self.name = name
        self.gap = gap_us
        self.longest = longest_us
        computed = {
            column: parse_aggregation(sql, input_schema, f"{field}.compute.{column}") for column, sql in compute.items()
        }
        accumulators = tuple(make_accumulator(entry) for entry in computed.values())
        self.layout = SessionLayout(Keys.of(input_schema, by, f"{field}.by"), accumulators)
        grouped = [(column, input_schema.types[column]) for column in by]
        self.schema = Schema((*grouped, *((column, entry.type) for column, entry in computed.items())), windowed=True)
        self._arguments = Arguments(computed.values())
        self._arrow = self.schema.arrow
        self._nothing = self.schema.empty()
        self._kind = f"sessions {gap_us} {longest_us} {grouped} {dict(compute)}"

    def empty(self) -> Sessions:
        return Sessions(self, Groups(self.layout), -INFINITY, NEVER)

    def encode(self, state: Sessions) -> bytes:
        """The open sessions, in the order of their keys."""
        keys, columns = state.groups.content()
        is_open = np.flatnonzero(columns[1] > state.upto)
        order = is_open[self._order([], [keys[row] for row in is_open])]
        arrays = self.layout.keys.stored([keys[row] for row in order])
        arrays += [slot.to_arrow(column[order]) for slot, column in zip(self.layout.slots, columns, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.layout.arrow)
        return pack(self._kind, {"upto": state.upto}, [encode_batch(batch)])

    def decode(self, blob: bytes) -> Sessions:
        facts, parts = unpack(blob, self._kind)
        upto = facts["upto"]
        if not isinstance(upto, int) or len(parts) != 1:
            raise CorruptError("the state of the sessions is inconsistent")
        groups = Groups.decode(self.layout, parts[0])
        return Sessions(self, groups, upto, int(groups.columns[1].min(initial=INFINITY)))

    def step(self, state: Sessions, batches: tuple[pa.RecordBatch, ...], upto: int) -> pa.RecordBatch:
        (batch,) = batches
        results = []
        with np.errstate(all="ignore"):
            if batch.num_rows:
                results += self._take(state, batch, upto)
            elif upto >= state.next_close:
                results.append(state.ending(upto, set()))
            state.settle(upto)
            keys = [key for names, _ in results for key in names]
            return self._result(keys, [columns for _, columns in results]) if keys else self._nothing

    def needs(self, time: int) -> int:
        return -INFINITY if self.longest is None else time // self.longest * self.longest

    def _take(
        self, state: Sessions, batch: pa.RecordBatch, upto: int
    ) -> list[tuple[list[RowKey], AccumulatorColumns]]:
        """Add rows; the sessions that end with this step."""
        keys, codes = self.layout.keys.encode(batch)
        order = np.argsort(codes, kind="stable")
        times, groups = event_times(batch)[order], codes[order]
        ends = self._ends(times)
        is_first = np.concatenate(([True], groups[1:] != groups[:-1]))
        goes_on = times[is_first] < state.ends(keys)
        begins = is_first.copy()
        begins[1:] |= times[1:] >= ends[:-1]
        sessions = np.cumsum(begins) - 1
        numbers = np.empty(len(codes), np.intp)
        numbers[order] = sessions
        held = [slot.fresh(int(sessions[-1]) + 1) for slot in self.layout.slots]
        held[0][:] = times[begins]
        held[1][:] = ends[np.concatenate((begins[1:], [True]))]
        going_on = [key for key, does in zip(keys, goes_on, strict=True) if does]
        over = state.ending(upto, set(going_on)) if upto >= state.next_close else None
        firsts = sessions[is_first][goes_on]
        rows = state.groups.touch(going_on)
        for slot, column in enumerate(state.groups.columns):
            if slot != 1:
                held[slot][firsts] = column[rows]
        shares = self.layout.shares(held)
        for entry, share, (kept, values) in zip(
            self.layout.accumulators, shares, self._arguments.values(batch), strict=True
        ):
            entry.fold(share, numbers if kept is None else numbers[kept], values)
        is_last = np.concatenate((is_first[1:], [True]))
        lasts = sessions[is_last]
        # A session that was there and ends now is kept as one that has ended.
        stays = np.flatnonzero((held[1][lasts] > upto) | goes_on)
        self._keep(state, [keys[place] for place in stays], [column[lasts[stays]] for column in held])
        closed = np.flatnonzero(held[1] <= upto)
        names = groups[begins][closed]
        found = [([keys[code] for code in names], [column[closed] for column in held])]
        return found if over is None else [over, *found]

    def _keep(self, state: Sessions, keys: list[RowKey], columns: AccumulatorColumns) -> None:
        """Make these the last sessions of their groups."""
        rows = state.groups.touch(keys)
        for mine, theirs in zip(state.groups.columns, columns, strict=True):
            mine[rows] = theirs
        state.next_close = min(state.next_close, int(columns[1].min(initial=INFINITY)))

    def _ends(self, times: np.ndarray) -> np.ndarray:
        """Where sessions end whose last rows have these times."""
        ends = times + self.gap
        return ends if self.longest is None else np.minimum(ends, (times // self.longest + 1) * self.longest)

    def _order(self, first: Sequence[tuple[pa.Array, bool]], keys: Sequence[RowKey]) -> np.ndarray:
        """The order by some columns, then by the keys."""
        columns = [*first, *((column, False) for column in self.layout.keys.arrays(keys))]
        return sorting(columns, "at_start") if columns else np.arange(len(keys))

    def _result(self, keys: list[RowKey], parts: list[AccumulatorColumns]) -> pa.RecordBatch:
        columns = [np.concatenate(slot) for slot in zip(*parts, strict=True)]
        order = self._order([(pa.array(columns[1]), False)], keys)
        columns = [column[order] for column in columns]
        starts, ends = columns[:2]
        edges = [pa.array(edge) for edge in (ends - 1, starts, ends)]
        key_columns = self.layout.keys.arrays([keys[row] for row in order])
        shares = zip(self.layout.accumulators, self.layout.shares(columns), strict=True)
        computed = [entry.result(share) for entry, share in shares]
        return pa.RecordBatch.from_arrays([*edges, *key_columns, *computed], schema=self._arrow)
