"""What each operator does, by small examples; tests/property holds the promises that all of them make."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from boreal.model.errors import UserError
from boreal.model.frames import INFINITY
from boreal.model.schema import Schema, Type
from operators.aggregate import AggregateOperator
from operators.deduplicate import DeduplicateOperator
from operators.distinct import DistinctOperator
from operators.filter import FilterOperator
from operators.join import JoinOperator, JoinState
from operators.lookup import LookupOperator, NewestRows
from operators.map import MapOperator
from operators.sessions import SessionOperator
from operators.top import TopOperator
from operators.union import UnionOperator

SCHEMA = Schema.of({"k": "string", "x": "int", "v": "double"})
LARGEST = (1 << 63) - 1


def batch(*rows: tuple[Any, ...], schema: Schema = SCHEMA) -> pa.RecordBatch:
    """Rows as tuples, time first."""
    names = schema.arrow.names
    return pa.RecordBatch.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema=schema.arrow)


def rows(out: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in out.to_pylist()]


def once(operator: Any, *batches: pa.RecordBatch, upto: int = INFINITY) -> list[tuple[Any, ...]]:
    return rows(operator.step(operator.empty(), batches, upto))


# -- Row by row -------------------------------------------------------------------------------------------------------


def test_filter_drops_false_and_null() -> None:
    assert once(FilterOperator("f", SCHEMA, "x > 1"), batch((1, "a", 1, 0.0), (2, "b", 2, 0.0), (2, "c", None, 0.0))) == [
        (2, "b", 2, 0.0)
    ]


def test_filter_wants_a_condition() -> None:
    with pytest.raises(UserError, match=r"operators\.f\.where: is not a condition but of type int"):
        FilterOperator("f", SCHEMA, "x + 1")


def test_map_lets_time_and_window_ride_along() -> None:
    windowed = Schema.of({"x": "int"}, windowed=True)
    operator = MapOperator("m", windowed, {"double": "x * 2", "until": "window_end"})
    assert operator.schema == Schema.of({"double": "int", "until": "timestamp"}, windowed=True)
    out = operator.step(operator.empty(), (batch((9, 0, 10, 4), schema=windowed),), INFINITY)
    assert out.select(["time", "window_start", "window_end", "double"]).to_pylist() == [
        {"time": 9, "window_start": 0, "window_end": 10, "double": 8}
    ]


def test_union_merges_by_time_then_input() -> None:
    operator = UnionOperator("u", (SCHEMA, Schema.of({"v": "double", "k": "string", "x": "int"})))
    left = batch((1, "a", 1, 0.0), (3, "b", 2, 0.0))
    right = batch((1, 0.5, "c", 3), (2, 0.5, "d", 4), schema=Schema.of({"v": "double", "k": "string", "x": "int"}))
    assert [row[1] for row in once(operator, left, right)] == ["a", "c", "d", "b"]


def test_union_wants_the_same_columns() -> None:
    with pytest.raises(UserError, match="different columns"):
        UnionOperator("u", (SCHEMA, Schema.of({"k": "string"})))


# -- Windows ----------------------------------------------------------------------------------------------------------


def test_a_window_closes_when_the_boundary_reaches_its_end() -> None:
    operator = AggregateOperator("a", SCHEMA, 10, 10, ("k",), {"n": "count(*)"})
    state = operator.empty()
    assert rows(operator.step(state, (batch((3, "a", 1, 0.0), (4, None, 1, 0.0)),), 9)) == []
    assert rows(operator.step(state, (SCHEMA.empty(),), 10)) == [(9, 0, 10, None, 1), (9, 0, 10, "a", 1)]
    assert rows(operator.step(state, (SCHEMA.empty(),), INFINITY)) == []


def test_windows_are_aligned_to_the_epoch_before_it_too() -> None:
    operator = AggregateOperator("a", SCHEMA, 10, 10, (), {"n": "count(*)"})
    assert once(operator, batch((-11, "a", 1, 0.0), (-1, "a", 1, 0.0), (0, "a", 1, 0.0))) == [
        (-11, -20, -10, 1),
        (-1, -10, 0, 1),
        (9, 0, 10, 1),
    ]


def test_sliding_windows_overlap() -> None:
    operator = AggregateOperator("a", SCHEMA, 20, 10, (), {"n": "count(*)", "t": "sum(x)"})
    assert once(operator, batch((5, "a", 1, 0.0), (15, "a", 2, 0.0))) == [
        (9, -10, 10, 1, 1),
        (19, 0, 20, 2, 3),
        (29, 10, 30, 1, 2),
    ]


def test_keys_are_sorted_by_their_utf8_bytes() -> None:
    operator = AggregateOperator("a", SCHEMA, 10, 10, ("k",), {"n": "count(*)"})
    words = ["b", "a", "\ufffd", "\U0001f600", "B", "é", ""]
    out = once(operator, batch(*((1, word, 1, 0.0) for word in words)))
    assert [row[3] for row in out] == sorted(words, key=str.encode)


def test_double_keys_have_one_zero_and_one_nan() -> None:
    operator = AggregateOperator("a", SCHEMA, 10, 10, ("v",), {"n": "count(*)"})
    values = [0.0, -0.0, math.nan, -math.nan, 1.0]
    out = once(operator, batch(*((1, "a", 1, value) for value in values)))
    assert sorted((str(row[3]), row[4]) for row in out) == [("0.0", 2), ("1.0", 1), ("nan", 2)]


def test_aggregates_pass_nulls_over() -> None:
    compute = {"n": "count(*)", "nx": "count(x)", "t": "sum(x)", "m": "avg(v)", "d": "stddev(v)", "f": "first(x)"}
    operator = AggregateOperator("a", SCHEMA, 10, 10, (), compute)
    assert once(operator, batch((1, "a", None, None))) == [(9, 0, 10, 1, 0, None, None, None, None)]
    out = once(operator, batch((1, "a", None, None), (2, "a", 4, 1.5)))
    assert out == [(9, 0, 10, 2, 1, 4, 1.5, None, 4)]


def test_nan_is_the_largest_double() -> None:
    operator = AggregateOperator("a", SCHEMA, 10, 10, (), {"lo": "min(v)", "hi": "max(v)"})
    ((*_, low, high),) = once(operator, batch((1, "a", 1, math.nan), (1, "a", 1, 2.0), (2, "a", 1, math.inf)))
    assert low == 2.0 and math.isnan(high)


def test_timestamps_and_bools_are_aggregated_as_what_they_are() -> None:
    schema = Schema.of({"t": "timestamp", "f": "bool"})
    compute = {"first": "min(t)", "some": "max(f)", "last": "last(f)", "kinds": "count(distinct f)"}
    operator = AggregateOperator("a", schema, 10, 10, ("f", "t"), compute)
    assert operator.schema.types["first"] is Type.TIMESTAMP and operator.schema.types["some"] is Type.BOOL
    state = operator.empty()
    operator.step(state, (batch((1, 7, True), (2, None, None), schema=schema),), 5)
    out = operator.step(operator.decode(state.encode()), (schema.empty(),), INFINITY)
    assert out.column(5).view(pa.int64()).to_pylist() == [None, 7]
    assert [row[6:] for row in rows(out)] == [(None, None, 0), (True, True, 1)]


def test_a_sum_may_leave_the_ints_on_its_way_but_not_in_the_end() -> None:
    operator = AggregateOperator("a", SCHEMA, 10, 10, (), {"t": "sum(x)", "m": "avg(x)"})
    assert once(operator, batch((1, "a", LARGEST, 0.0), (2, "a", 9, 0.0), (3, "a", -9, 0.0))) == [
        (9, 0, 10, LARGEST, float(LARGEST) / 3)
    ]
    for beyond in ((LARGEST, 1), (-LARGEST, -2)):
        assert once(operator, batch((1, "a", beyond[0], 0.0), (2, "a", beyond[1], 0.0)))[0][3] is None
    assert once(operator, batch((1, "a", -LARGEST, 0.0), (2, "a", -1, 0.0)))[0][3] == -LARGEST - 1


def test_a_deviation_far_from_zero_keeps_its_digits() -> None:
    operator = AggregateOperator("a", SCHEMA, 20, 10, (), {"d": "stddev(v)"})
    values = [1e9 + value for value in (4.0, 7.0, 13.0, 16.0)]
    out = once(operator, batch(*((5 * place, "a", 1, value) for place, value in enumerate(values))))
    assert out[1][3] == pytest.approx(math.sqrt(30.0), rel=1e-12)


def test_by_must_name_columns() -> None:
    with pytest.raises(UserError, match=r"operators\.a\.by: is not a column .*did you mean k"):
        AggregateOperator("a", SCHEMA, 10, 10, ("kk",), {"n": "count(*)"})


def test_an_empty_step_that_closes_nothing_makes_nothing_anew() -> None:
    operator = AggregateOperator("a", SCHEMA, 10, 10, ("k",), {"n": "count(*)"})
    state = operator.empty()
    assert operator.step(state, (SCHEMA.empty(),), 3) is operator.step(state, (SCHEMA.empty(),), 50)


def test_top_ranks_within_each_group() -> None:
    operator = TopOperator("t", SCHEMA, 2, "v desc", 10, 10, ("k",))
    given = batch((1, "b", 1, 1.0), (2, "a", 2, None), (3, "b", 3, 1.0), (4, "b", 4, 2.0), (5, "a", 5, -1.0))
    assert once(operator, given) == [
        (9, 0, 10, 1, "a", 5, -1.0),
        (9, 0, 10, 2, "a", 2, None),
        (9, 0, 10, 1, "b", 4, 2.0),
        (9, 0, 10, 2, "b", 1, 1.0),
    ]


def test_top_keeps_no_more_rows_than_it_must() -> None:
    operator = TopOperator("t", SCHEMA, 3, "v desc", 10, 10, ())
    state = operator.empty()
    for step in range(100):
        operator.step(state, (batch(*((1, "a", step, float(row)) for row in range(100))),), 2)
    assert state.panes[0].rows < 5_000
    assert [row[5] for row in rows(operator.step(state, (SCHEMA.empty(),), INFINITY))] == [0, 1, 2]


def test_top_refuses_a_second_rank() -> None:
    with pytest.raises(UserError, match="rank"):
        TopOperator("t", Schema.of({"rank": "int"}), 3, "rank", 10, 10, ())


def test_distinct_forgets_with_its_window() -> None:
    given = batch((1, "a", 1, 0.0), (2, "a", 2, 0.0), (3, None, 3, 0.0), (4, None, 4, 0.0), (11, "a", 5, 0.0))
    assert [row[2] for row in once(DistinctOperator("d", SCHEMA, ("k",), 10), given)] == [1, 3, 5]
    assert [row[2] for row in once(DistinctOperator("d", SCHEMA, ("k",), None), given)] == [1, 3]
    assert DistinctOperator("d", SCHEMA, ("k",), None).needs(17) == -INFINITY
    assert DistinctOperator("d", SCHEMA, ("k",), 10).needs(17) == 10


def test_deduplicate_forgets_a_value_that_has_not_come_for_so_long() -> None:
    operator = DeduplicateOperator("d", SCHEMA, ("k",), 10)
    given = batch(*((time, key, time, 0.0) for time, key in ((1, "a"), (1, "a"), (10, "a"), (12, None), (19, "a"), (29, "a"))))
    assert [row[:2] for row in once(operator, given)] == [(1, "a"), (12, None), (29, "a")]
    state = operator.empty()
    operator.step(state, (given,), 38)
    assert state.panes, "a row at 38 would be a repetition"
    operator.step(state, (SCHEMA.empty(),), 40)
    assert not state.panes
    assert operator.needs(17) == 8


def test_a_deduplicate_on_an_overlay_knows_what_came_before() -> None:
    operator = DeduplicateOperator("d", SCHEMA, ("k",), 10)
    state = operator.empty()
    operator.step(state, (batch((1, "a", 1, 0.0)),), 2)
    child = state.overlay()
    assert rows(operator.step(child, (batch((3, "b", 2, 0.0), (5, "a", 3, 0.0)),), 6)) == [(3, "b", 2, 0.0)]
    assert rows(operator.step(state, (batch((3, "b", 2, 0.0)),), 6)) == [(3, "b", 2, 0.0)]


def test_a_session_ends_with_a_gap_and_at_the_multiples_of_longest() -> None:
    given = batch(*((time, key, time, 0.0) for time, key in ((1, "b"), (1, "a"), (4, "b"), (8, "b"), (9, "b"), (11, None))))
    compute = {"n": "count(*)", "last": "last(x)"}
    assert once(SessionOperator("s", SCHEMA, 4, None, ("k",), compute), given) == [
        (4, 1, 5, "a", 1, 1),
        (7, 1, 8, "b", 2, 4),
        (12, 8, 13, "b", 2, 9),
        (14, 11, 15, None, 1, 11),
    ]
    operator = SessionOperator("s", SCHEMA, 8, 10, (), compute)
    assert once(operator, given) == [(9, 1, 10, 5, 9), (18, 11, 19, 1, 11)]
    assert operator.needs(17) == 10
    assert SessionOperator("s", SCHEMA, 8, None, (), compute).needs(17) == -INFINITY


def test_a_session_goes_on_on_an_overlay() -> None:
    operator = SessionOperator("s", SCHEMA, 5, None, ("k",), {"n": "count(*)"})
    state = operator.empty()
    operator.step(state, (batch((1, "a", 1, 0.0)),), 3)
    for layer in (state.overlay(), state):
        assert rows(operator.step(layer, (batch((4, "a", 2, 0.0)),), INFINITY)) == [(8, 1, 9, "a", 2)]


def test_a_session_that_follows_one_with_other_values_counts_its_own() -> None:
    """A set of values that an overlay has begun replaces the one of the session before."""
    operator = SessionOperator("s", SCHEMA, 5, None, ("k",), {"kinds": "count(distinct x)"})
    state = operator.empty()
    operator.step(state, (batch((1, "a", 1, 0.0), (2, "a", 2, 0.0)),), 3)
    child = state.overlay()
    assert rows(operator.step(child, (batch((9, "a", 3, 0.0)),), 10)) == [(6, 1, 7, "a", 2)]
    state.absorb(child)
    assert rows(operator.step(state, (batch((11, "a", 3, 0.0)),), INFINITY)) == [(15, 9, 16, "a", 1)]


def test_sessions_that_have_ended_are_cleared_away() -> None:
    operator = SessionOperator("s", SCHEMA, 5, None, ("x",), {"n": "count(*)"})
    state = operator.empty()
    for time in range(0, 60_000, 10):
        operator.step(state, (batch((time, "a", time, 0.0)),), time + 10)
    assert len(state.groups.places) < 5_000


# -- Joins ------------------------------------------------------------------------------------------------------------

OTHER = Schema.of({"x": "int", "k": "string", "w": "double"})


def test_a_join_pairs_rows_that_are_near_in_time() -> None:
    operator = JoinOperator("j", (SCHEMA, OTHER), ("k",), 5, "inner")
    assert operator.schema == Schema.of({"k": "string", "x": "int", "v": "double", "x_right": "int", "w": "double"})
    left = batch((0, "a", 1, 0.0), (10, "a", 2, 0.0), (10, None, 3, 0.0))
    right = batch((5, 7, "a", 0.5), (5, 8, None, 0.5), (16, 9, "a", 0.5), schema=OTHER)
    assert once(operator, left, right) == [(5, "a", 1, 0.0, 7, 0.5), (10, "a", 2, 0.0, 7, 0.5)]


def test_pairs_of_one_time_go_by_the_left_row_then_the_right() -> None:
    """R5: whichever of the two came first."""
    operator = JoinOperator("j", (SCHEMA, OTHER), ("k",), 5, "inner")
    left = batch((1, "a", 1, 0.0), (2, "a", 2, 0.0))
    right = batch((5, 7, "a", 0.5), (5, 8, "a", 0.5), schema=OTHER)
    state = operator.empty()
    operator.step(state, (left, right.slice(0, 0)), 3)
    pairs = rows(operator.step(state, (left.slice(0, 0), right), 6))
    assert [(time, x, x_right) for time, _, x, _, x_right, _ in pairs] == [(5, 1, 7), (5, 1, 8), (5, 2, 7), (5, 2, 8)]


def test_a_left_row_that_finds_nobody_gets_nulls_once_nobody_can_come() -> None:
    operator = JoinOperator("j", (SCHEMA, OTHER), ("k",), 5, "left")
    state = operator.empty()
    assert rows(operator.step(state, (batch((0, "a", 1, 0.0)), OTHER.empty()), 5)) == []
    assert rows(operator.step(state, (SCHEMA.empty(), OTHER.empty()), 6)) == [(5, "a", 1, 0.0, None, None)]
    assert rows(operator.step(state, (SCHEMA.empty(), OTHER.empty()), INFINITY)) == []


def test_what_a_join_needs() -> None:
    assert JoinOperator("j", (SCHEMA, OTHER), ("k",), 5, "inner").needs(100) == 95
    assert JoinOperator("j", (SCHEMA, OTHER), ("k",), 5, "left").needs(100) == 90


def test_a_join_wants_one_type_for_a_key() -> None:
    with pytest.raises(UserError, match=r"operators\.j\.on: is int on the left and string on the right"):
        JoinOperator("j", (SCHEMA, Schema.of({"x": "string"})), ("x",), 5, "inner")


def test_a_join_lets_go_of_rows_and_keys() -> None:
    operator = JoinOperator("j", (SCHEMA, OTHER), ("k",), 5, "left")
    state: JoinState = operator.empty()
    for step in range(200):
        left = batch(*((step, f"left {step} {row}", 1, 0.0) for row in range(100)))
        right = batch(*((step, 1, f"right {step} {row}", 0.0) for row in range(100)), schema=OTHER)
        operator.step(state, (left, right), step + 1)
    assert len(state.left) < 2_500 and len(state.right) < 2_500
    assert len(state.numbering) < 12_000
    assert operator.step(state, (SCHEMA.empty(), OTHER.empty()), INFINITY).num_rows == 600 - 100


def test_an_overlay_costs_no_more_for_a_large_state() -> None:
    operator = AggregateOperator("a", SCHEMA, 10, 10, ("k",), {"n": "count(*)", "d": "count(distinct x)"})
    state = operator.empty()
    operator.step(state, (batch(*((1, f"key {row}", 1, 0.0) for row in range(5_000))),), 2)
    overlay = state.overlay()
    operator.step(overlay, (batch((2, "key 7", 2, 0.0)),), 3)
    groups = overlay.panes[0]
    assert len(groups.places) == 1 and len(groups.columns[0]) < 100
    assert 0 < overlay.nbytes() < 1_000 and state.nbytes() > 100_000


# -- Lookups ----------------------------------------------------------------------------------------------------------


def looked_up(within: int | None, how: Any) -> LookupOperator:
    return LookupOperator("l", (SCHEMA, OTHER), ("k",), within, how)


def test_a_lookup_takes_the_newest_row_that_is_not_later() -> None:
    operator = looked_up(None, "left")
    assert operator.schema == Schema.of({"k": "string", "x": "int", "v": "double", "x_right": "int", "w": "double"})
    table = batch((1, 7, "a", 0.1), (4, 8, "a", 0.2), (4, 9, "a", 0.3), (6, 10, None, 0.4), schema=OTHER)
    given = batch(*((time, key, 0, 0.0) for time, key in ((0, "a"), (3, "a"), (4, "a"), (5, "b"), (7, None), (9, "a"))))
    assert [row[4] for row in once(operator, given, table)] == [None, 7, 9, None, None, 9]
    assert [row[0] for row in once(looked_up(None, "inner"), given, table)] == [3, 4, 9]
    assert [row[0] for row in once(looked_up(4, "inner"), given, table)] == [3, 4]
    assert once(operator, SCHEMA.empty(), table) == once(looked_up(0, "inner"), given, OTHER.empty()) == []


def test_a_lookup_keeps_the_window_of_its_left_rows() -> None:
    windowed = Schema.of({"k": "string"}, windowed=True)
    operator = LookupOperator("l", (windowed, windowed), ("k",), None, "inner")
    left, table = batch((9, 0, 10, "a"), schema=windowed), batch((4, 0, 5, "a"), schema=windowed)
    assert once(operator, left, table) == [(9, 0, 10, "a")]


def test_what_a_lookup_needs() -> None:
    assert looked_up(5, "left").needs(17) == 12
    assert looked_up(None, "left").needs(17) == -INFINITY


def test_a_lookup_keeps_one_row_of_each_value_and_none_that_is_too_old() -> None:
    operator = looked_up(1_000, "inner")
    state = operator.empty()
    for time in range(0, 60_000, 10):
        operator.step(state, (SCHEMA.empty(), batch((time, 0, "a", 0.0), (time, 0, f"k{time}", 0.0), schema=OTHER)), time + 1)
    assert isinstance(state, NewestRows) and state.rows < 5_000
    assert operator.decode(state.encode()).rows == 101


def test_a_lookup_on_an_overlay_finds_what_came_before_and_what_replaced_it() -> None:
    operator = looked_up(None, "inner")
    state = operator.empty()
    operator.step(state, (SCHEMA.empty(), batch((1, 1, "a", 0.0), (1, 2, "b", 0.0), schema=OTHER)), 2)
    child = state.overlay()
    operator.step(child, (SCHEMA.empty(), batch((3, 3, "b", 0.0), schema=OTHER)), 4)
    given = batch((5, "a", 0, 0.0), (5, "b", 0, 0.0))
    assert [row[4] for row in once_more(operator, child.overlay(), given)] == [1, 3]
    assert [row[4] for row in once_more(operator, state.overlay(), given)] == [1, 2]
    state.absorb(child)
    assert [row[4] for row in once_more(operator, state, given)] == [1, 3]


CHANGES = Schema.of({"k": "string", "x": "int", "gone": "bool"})


def test_a_lookup_finds_no_row_that_was_deleted_before_and_keeps_nothing_of_it() -> None:
    operator = LookupOperator("l", (SCHEMA, CHANGES), ("k",), None, "left", "gone")
    assert operator.schema == Schema.of({"k": "string", "x": "int", "v": "double", "x_right": "int"})
    table = batch((1, "a", 7, None), (4, "a", None, True), (6, "a", 8, False), (6, "b", 9, True), schema=CHANGES)
    given = batch(*((time, "a", 0, 0.0) for time in (0, 3, 4, 5, 6)), (6, "b", 0, 0.0))
    state = operator.empty()
    found = operator.step(state, (given, table), 7)
    assert found["x_right"].to_pylist() == [None, 7, None, None, 8, None]
    assert list(operator.decode(state.encode()).places) == list(state.places) and len(state.places) == 1
    with_deleted = operator.step(state, (batch((8, "a", 0, 0.0)), batch((7, "a", 0, True), schema=CHANGES)), 9)
    assert with_deleted["x_right"].to_pylist() == [None] and not state.places


def test_a_delete_on_an_overlay_hides_the_row_below_until_it_is_dropped() -> None:
    operator = LookupOperator("l", (SCHEMA, CHANGES), ("k",), None, "inner", "gone")
    state, given = operator.empty(), batch((5, "a", 0, 0.0))
    operator.step(state, (SCHEMA.empty(), batch((1, "a", 7, None), schema=CHANGES)), 2)
    child = state.overlay()
    operator.step(child, (SCHEMA.empty(), batch((3, "a", None, True), schema=CHANGES)), 4)

    def found(layer: NewestRows) -> list[Any]:
        return operator.step(layer, (given, CHANGES.empty()), INFINITY)["x_right"].to_pylist()

    assert (found(child.overlay()), found(state.overlay())) == ([], [7])
    assert not operator.decode(child.encode()).places
    state.absorb(child)
    assert found(state) == [] and not state.places


def once_more(operator: LookupOperator, state: NewestRows, left: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return rows(operator.step(state, (left, OTHER.empty()), INFINITY))
