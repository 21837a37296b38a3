"""The operators' oracle says what the operators do, and notices when they do otherwise."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow.compute as pc
import pytest

from operators.join import JoinOperator
from operators.keys import Keys
from operators.windows import Windows
from simulation.expressions import aggregated, condition, selected
from simulation.families import make_scenario
from simulation.invariants import check_operators
from simulation.oracle import Oracle
from simulation.run import observe
from simulation.scenario import make_reference

SEEDS = 40


def _differs(seed: int) -> bool:
    scenario = make_scenario(seed)
    return bool(list(check_operators(Oracle(scenario.plan, scenario.feeds), observe(make_reference(scenario)))))


def _with_shorter_within(patch: pytest.MonkeyPatch) -> None:
    original = JoinOperator.__init__

    def shorter(self: JoinOperator, *args: Any) -> None:
        original(self, *args)
        self.within -= 1

    patch.setattr(JoinOperator, "__init__", shorter)


def _with_later_panes(patch: pytest.MonkeyPatch) -> None:
    """A row on a window's edge counts for the window before."""
    original = Windows.split
    patch.setattr(
        Windows,
        "split",
        lambda self, batch: original(self, batch.set_column(0, "time", pc.subtract(batch.column(0), 1))),
    )


def _with_nulls_joined(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Keys, "without_nulls", lambda self, keys, codes: (keys, codes))


@pytest.mark.parametrize("spoil", [_with_shorter_within, _with_later_panes, _with_nulls_joined])
def test_a_wrong_edge_is_seen(spoil: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch)
    assert any(_differs(seed) for seed in range(SEEDS))


@pytest.mark.parametrize(
    "text, row, keeps",
    [
        ("v > 10", {"v": float("nan")}, False),
        ("v < 40 or n = 3", {"v": None, "n": 3}, True),
        ("v < 40 or n = 3", {"v": None, "n": 4}, None),
        ("n > 1 and v is not null", {"n": None, "v": None}, False),
    ],
)
def test_a_condition_with_nulls(text: str, row: dict[str, Any], keeps: bool | None) -> None:
    assert condition(text)(row) is keeps


def test_what_has_no_finite_result_is_null() -> None:
    assert selected("v / n")({"v": 1.0, "n": 0}) is None
    assert selected("n + 1")({"n": (1 << 63) - 1}) is None
    assert aggregated("sum(n)", [[{"n": (1 << 63) - 1}], [{"n": 1}]]) is None
    assert aggregated("sum(n)", [[{"n": (1 << 63) - 1}, {"n": 1}], [{"n": -1}]]) == (1 << 63) - 1


def test_decimals_are_exact_and_null_where_they_have_no_room() -> None:
    most = Decimal("9999999999999999999999999999999999.9999")
    assert str(selected("w - 0.5")({"w": most})) == "9999999999999999999999999999999999.4999"
    assert selected("w + d")({"w": most, "d": Decimal("0.01")}) is None
    assert str(selected("cast(v as decimal(9, 2))")({"v": -0.001})) == "0.00"
    assert selected("cast(d * 1.19 as decimal(9, 2))")({"d": Decimal("-0.50")}) == Decimal("-0.60")
    assert selected("a + n")({"a": date(9999, 12, 31), "n": 1}) is None
    assert aggregated("sum(w)", [[{"w": most}], [{"w": Decimal("0.0001")}]]) is None
    assert aggregated("sum(w)", [[{"w": most}, {"w": Decimal("0.0001")}], [{"w": Decimal("-0.0001")}]]) == most
    assert aggregated("avg(d)", [[{"d": Decimal("0.10")}], [{"d": Decimal("0.20")}]]) == 0.15
    some: list[dict[str, Any]] = [
        {"d": Decimal("0.10"), "b": True}, {"d": Decimal("1.00"), "b": None}, {"d": None, "b": True},
    ]  # fmt: skip
    assert aggregated("sum(d) filter (where b)", [some]) == Decimal("0.10")
    assert aggregated("count_if(d > 0.50)", [some]) == 1
