"""The operators keep boreal's contract, and their results are those of DuckDB over the same rows."""

from __future__ import annotations

import math
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from trade_operators import LargeTrades, RunningVolume, Vwap

from boreal_testing import check_operator, run_operator, sample_rows

TRADES = {"symbol": "string", "price": "double", "size": "int"}
# Sums of these are exact, so that the order in which DuckDB adds does not matter.
VALUES: dict[str, list[Any]] = {"price": [None, 1.0, 2.5, 101.25, -0.0, math.nan, math.inf], "size": [None, 0, 1, 100, 1 << 40]}
WINDOW = {"window": "10us"}


@pytest.mark.parametrize(
    ("operator", "parameters"),
    [(LargeTrades, {"above": 1.0}), (RunningVolume, WINDOW), (Vwap, WINDOW)],
    ids=["large_trades", "running_volume", "vwap"],
)
def test_the_contract_is_kept(operator: Any, parameters: dict[str, Any]) -> None:
    check_operator(operator, TRADES, parameters)


def queried(sql: str, rows: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """What DuckDB says of the table `trades`; `place` is a row's place."""
    numbered = pa.Table.from_batches([rows]).append_column("place", pa.array(range(rows.num_rows)))
    with duckdb.connect() as connection:
        connection.register("trades", numbered)
        return connection.sql(sql).fetchall()


def same(one: Any, other: Any) -> bool:
    return one == other or (one is not None and other is not None and math.isnan(one) and math.isnan(other))


@pytest.mark.parametrize("seed", range(20))
def test_large_trades_are_those_of_duckdb(seed: int) -> None:
    rows = sample_rows(TRADES, seed, 60, values=VALUES)
    made = run_operator(LargeTrades, rows, {"above": 200.0}, cuts=[7, 20]).column("large").to_pylist()
    # For DuckDB NaN is above all numbers; here it is above none.
    wanted = queried("select price * size > 200 and not isnan(price * size) from trades order by place", rows)
    assert made == [large for (large,) in wanted]


@pytest.mark.parametrize("seed", range(20))
def test_a_running_volume_is_that_of_duckdb(seed: int) -> None:
    rows = sample_rows(TRADES, seed, 60, values=VALUES)
    made = run_operator(RunningVolume, rows, WINDOW, cuts=[7, 20]).column("volume").to_pylist()
    sums = "sum(coalesce(size, 0)::double) over (partition by symbol, time // 10 order by place)"
    assert made == [volume for (volume,) in queried(f"select {sums} from trades order by place", rows)]


@pytest.mark.parametrize("seed", range(20))
def test_a_vwap_is_that_of_duckdb(seed: int) -> None:
    rows = sample_rows(TRADES, seed, 60, values=VALUES)
    made = run_operator(Vwap, rows, WINDOW, cuts=[7, 20]).to_pylist()
    wanted = queried(
        """
        select time // 10 * 10 as start, symbol, sum(price * size) as value,
               sum(size::double) filter (where price is not null) as sizes
        from trades group by all order by start, symbol nulls first
        """,
        rows,
    )
    assert [(row["window_start"], row["symbol"]) for row in made] == [(start, symbol) for start, symbol, *_ in wanted]
    for row, (*_, value, sizes) in zip(made, wanted, strict=True):
        assert same(row["vwap"], value / sizes if sizes else None)
