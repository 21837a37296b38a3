"""The operator host's three strategies, over a real window aggregate: MARK, tentative steps, ROLLBACK, redo."""

from __future__ import annotations

import pyarrow as pa
import pytest

from boreal.model.errors import CorruptError
from boreal.model.frames import INFINITY
from boreal.query.spec import Mode
from operators.graph import FragmentGraph
from reconcile.host import Host
from reconcile.strategy import Strategy
from sunion.steps import Step
from tests.harness import S, plan_of, query_of

OPERATORS = {
    "n": {"aggregate": "a", "window": {"tumbling": "1s"}, "by": ["k"], "compute": {"n": "count(*)", "total": "sum(v)"}},
}
PLAN = plan_of(query_of(OPERATORS, "n", streams=("a",)))
FRAGMENT = PLAN.fragment("main")

Rows = list[tuple[int, int]]

PAST: Rows = [(100, 1), (600, 2), (1100, 1), (1300, 1)]
LACKING: Rows = [(1600, 2)]
WHOLE: Rows = [(1500, 1), (1600, 2), (1900, 1)]
LATER: Rows = [(2200, 1), (2600, 2)]
MARK_AT = 1_400


def host_of(mode: Mode) -> Host:
    return Host(FragmentGraph(FRAGMENT), mode)


def step(host: Host, rows: Rows, upto_ms: int, tentative: bool = False, muted: bool = False) -> list[tuple[int, int, int]]:
    """Rows (ms, k) of the next step; returns the output as (window end in s, k, n)."""
    schema = FRAGMENT.inputs[0].schema.arrow
    columns = [[ms * 1000 for ms, _ in rows], [k for _, k in rows], [1.0] * len(rows)]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(column, kind.type) for column, kind in zip(columns, schema, strict=True)], schema=schema
    )
    upto = INFINITY if upto_ms < 0 else upto_ms * 1000
    [made] = host.step(Step({"a": batch}, upto, tentative, muted, ((INFINITY, 0),))).values()
    return [(row["window_end"] // S, row["k"], row["n"]) for row in made.to_pylist()]


def expected() -> list[tuple[int, int, int]]:
    """What a host that saw no failure makes of the rows from the mark on."""
    host = host_of(Mode.CHECKPOINT_REDO)
    step(host, PAST, MARK_AT)
    return step(host, WHOLE, 2000) + step(host, LATER, -1)


@pytest.mark.parametrize("mode", list(Mode))
def test_a_redo_gives_what_no_failure_would_have_given(mode: Mode) -> None:
    host = host_of(mode)
    step(host, PAST, MARK_AT)
    strategy = Strategy(host.graph, mode, copied_at=MARK_AT * 1000)
    host.mark(strategy.copies_at_mark)
    assert step(host, LACKING, 2000, tentative=True) == [(2, 1, 2), (2, 2, 1)], "of partial input"
    host.roll_back(keep_live=False)
    replay_from = strategy.replay_from(MARK_AT * 1000)
    again = [row for row in PAST if row[0] * 1000 >= replay_from]
    if replay_from < MARK_AT * 1000:
        step(host, again, MARK_AT, muted=True)
    assert step(host, WHOLE, 2000) + step(host, LATER, -1) == expected()
    host.redone()


def test_each_strategy_says_from_where_it_must_be_given_rows_again() -> None:
    graph = FragmentGraph(FRAGMENT)
    places = {mode: Strategy(graph, mode, copied_at=MARK_AT * 1000).replay_from(MARK_AT * 1000) for mode in Mode}
    assert places == {
        Mode.CHECKPOINT_REDO: MARK_AT * 1000,
        Mode.UNDO_REDO: 1000 * 1000,
        Mode.OVERLAY_REDO: MARK_AT * 1000,
    }, "undo_redo rebuilds the window that is open since 1 s"


def test_only_checkpoint_redo_copies_the_state_at_a_mark() -> None:
    graph = FragmentGraph(FRAGMENT)
    assert [mode for mode in Mode if Strategy(graph, mode).copies_at_mark] == [Mode.CHECKPOINT_REDO]
    periodic = Strategy(graph, Mode.CHECKPOINT_REDO, periodic=True, copied_at=5)
    assert not periodic.copies_at_mark and periodic.replay_from(10) == 5


def test_a_copy_starts_another_host() -> None:
    host = host_of(Mode.CHECKPOINT_REDO)
    step(host, PAST, MARK_AT)
    other = host_of(Mode.CHECKPOINT_REDO)
    other.begin(host.checkpoint())
    assert step(other, WHOLE, 2000) + step(other, LATER, -1) == expected()
    with pytest.raises(CorruptError):
        other.begin(b"no state of ours")


def test_a_periodic_checkpoint_serves_in_place_of_one_at_the_mark() -> None:
    host = host_of(Mode.CHECKPOINT_REDO)
    step(host, PAST[:2], 1000)
    host.checkpoint()
    step(host, PAST[2:], MARK_AT)
    host.mark(copies=False)
    step(host, LACKING, 2000, tentative=True)
    host.roll_back(keep_live=False)
    step(host, PAST[2:], MARK_AT, muted=True)
    assert step(host, WHOLE, 2000) + step(host, LATER, -1) == expected()


def test_an_overlay_stays_live_while_its_base_is_redone() -> None:
    """R21."""
    host = host_of(Mode.OVERLAY_REDO)
    step(host, PAST, MARK_AT)
    host.mark(copies=False)
    step(host, LACKING, 2000, tentative=True)
    host.roll_back(keep_live=True)
    redone = step(host, WHOLE, 2000)
    assert step(host, [(2600, 2)], 2700, tentative=True) == []
    redone += step(host, LATER, 2700)
    assert step(host, [(2800, 2)], -1, tentative=True) == [(3, 2, 2)], "the live branch knows nothing of the correction"
    redone += step(host, [], -1)
    assert redone == expected()
    host.redone()
    assert host.live is None and host.redo is None


def test_a_live_branch_gives_nothing_of_the_correction_beside_it() -> None:
    """R21: not in a window that was open at the mark either."""
    host = host_of(Mode.OVERLAY_REDO)
    step(host, PAST, MARK_AT)
    host.mark(copies=False)
    step(host, LACKING, 1700, tentative=True)
    host.roll_back(keep_live=True)
    step(host, WHOLE, 1950)
    assert step(host, [], 2000, tentative=True) == [(2, 1, 2), (2, 2, 1)]


def test_the_base_does_not_change_while_an_overlay_lives() -> None:
    host = host_of(Mode.OVERLAY_REDO)
    step(host, PAST, MARK_AT)
    before = host.state.encode()
    host.mark(copies=False)
    step(host, LACKING, 2000, tentative=True)
    assert host.state.encode() == before


def test_what_is_kept_for_a_rollback_is_counted_apart_from_the_state() -> None:
    for mode, (mark_keeps, step_keeps) in {
        Mode.CHECKPOINT_REDO: (True, False), Mode.UNDO_REDO: (False, False), Mode.OVERLAY_REDO: (False, True)
    }.items():  # fmt: skip
        host = host_of(mode)
        assert host.held_bytes == (0, 0)
        step(host, PAST, MARK_AT)
        state, versions = host.held_bytes
        assert state > 0 and versions == 0
        host.mark(copies=mode is Mode.CHECKPOINT_REDO)
        assert host.held_bytes == (state, len(host.copy)) and bool(host.copy) is mark_keeps
        step(host, [(1600, k) for k in range(100)], 1_700, tentative=True)
        grown, versions = host.held_bytes
        if step_keeps:
            assert grown == state and versions > 100 * 100
        else:
            assert grown > state + 100 * 100 and versions == len(host.copy)
        host.roll_back(keep_live=False)
        host.redone()
        assert host.held_bytes[0] == (0 if mode is Mode.UNDO_REDO else state)


def test_a_tentative_step_before_a_mark_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="after a MARK"):
        step(host_of(Mode.CHECKPOINT_REDO), LACKING, 2000, tentative=True)
