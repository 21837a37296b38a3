"""The shop: what boreal makes of its files is what DuckDB says of the records that are to count."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner

from boreal.query.spec import load_query
from boreal_cli.app import app
from examples.shop.generate import DISORDER_S, FIRST_DAY, PARTITIONS, Record, make, write
from tests.thoroughness import every

EXAMPLES = Path(__file__).parents[2] / "examples" / "shop"
SEEDS = [1, 2, 3]

REVENUE = """
    with settled as (
        select case when p.t is null then o.t + to_microseconds({within_us}) else greatest(o.t, p.t) end as moment,
               o.country, o.amount, p.paid
        from (select distinct t, order_id, country, amount from orders) o
        left join (select distinct t, order_id, paid from payments) p
          on o.order_id = p.order_id and abs(epoch_us(o.t) - epoch_us(p.t)) <= {within_us}
    )
    select time_bucket(to_microseconds({window_us}), moment) as window_start,
           window_start + to_microseconds({window_us}) as window_end, country,
           count(*) as orders, sum(amount) as ordered, count(paid) as payments, sum(paid) as revenue
    from settled group by window_start, country
"""

ACTIVITY = """
    with activity as (
        select t, 'order' as kind, country from (select distinct t, order_id, country from orders)
        union all select t, 'click' as kind, country from clicks
    )
    select time_bucket(to_microseconds({window_us}), t) as window_start,
           window_start + to_microseconds({window_us}) as window_end, kind, country, count(*) as n
    from activity group by window_start, kind, country
"""

COLUMNS = {
    "orders": "'at': 'timestamp', 'order_id': 'varchar', 'country': 'varchar', 'amount': 'double'",
    "payments": "'at': 'timestamp', 'order_id': 'varchar', 'paid': 'double'",
    "clicks": "'at': 'timestamp', 'user': 'varchar', 'country': 'varchar'",
}


def oracle(folder: Path, records: Iterable[Record], sql: str, window_s: float = 60.0, within_s: float = 30.0) -> Counter[str]:
    """The rows that DuckDB makes of the records that are to count, each as a line of stable.jsonl."""
    counting = folder / "counting"
    write(counting, [record for record in records if record.counts])
    with duckdb.connect() as database:
        database.execute("set timezone = 'UTC'")
        for stream, columns in COLUMNS.items():
            source = f"read_json('{counting / stream}.jsonl', format = 'newline_delimited', columns = {{{columns}}})"
            database.execute(f"create view {stream} as select \"at\" as t, * from {source}")
        answer = database.execute(sql.format(window_us=round(window_s * 1e6), within_us=round(within_s * 1e6)))
        names = [column[0] for column in answer.description]
        rows = [dict(zip(names, row, strict=True)) for row in answer.fetchall()]
    return lines(rows)


def lines(rows: Iterable[dict[str, Any]]) -> Counter[str]:
    def plain(value: Any) -> Any:
        return value.isoformat().replace("+00:00", "") + "Z" if hasattr(value, "isoformat") else value

    return Counter(json.dumps({name: plain(value) for name, value in row.items()}, sort_keys=True) for row in rows)


@pytest.mark.parametrize("seed", every(3, SEEDS))
@pytest.mark.parametrize(("name", "sql"), [("revenue", REVENUE), ("activity", ACTIVITY)], ids=["revenue", "activity"])
def test_boreal_run_gives_what_duckdb_says(tmp_path: Path, name: str, sql: str, seed: int) -> None:
    records = make(seed)
    write(tmp_path, records)
    streams = load_query(EXAMPLES / f"{name}.yaml").streams
    sources = [part for stream in streams for part in ("--source", f"{stream}={tmp_path / stream}.jsonl")]
    pace = ["--speed", "20x", "--seed", str(seed), "--fault", "cut orders at 4s for 5s"]
    result = CliRunner().invoke(app, ["run", str(EXAMPLES / f"{name}.yaml"), *sources, *pace, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    stable = [json.loads(line) for line in (tmp_path / "out" / "stable.jsonl").read_text().splitlines()]
    assert lines(stable) == oracle(tmp_path, records, sql)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["violations"] == 0 and 0 < report["delay_new_ms_max"] <= report["x_ms"] == 3_000
    letters = [json.loads(line) for line in (tmp_path / "out" / "dlq.jsonl").read_text().splitlines()]
    refused = Counter((record.stream, record.value) for record in records if not record.counts and record.stream in streams)
    # An empty line of a file is no record.
    assert Counter((letter["source"], letter["record"]) for letter in letters) == Counter(
        {of: count for of, count in refused.items() if of[1]}
    )
    reasons = [letter["reason"] for letter in letters]
    assert sum("ahead of the rows around it" in reason for reason in reasons) == 1
    assert sum(reason.startswith("late by") for reason in reasons) == sum(
        record.kind == "late" for record in records if record.stream in streams
    )


# The generator


def test_one_seed_makes_the_same_records_and_another_does_not() -> None:
    assert make(1) == make(1) and make(1) != make(2)


def test_all_that_goes_wrong_is_there_and_disorder_is_kept_to() -> None:
    records = make(1)
    kinds = Counter(record.kind for record in records)
    assert kinds["ahead"] == 1 and all(kinds[kind] > 5 for kind in ("duplicate", "malformed", "late"))
    assert any("coupon" in record.value for record in records) and any("null" in record.value for record in records)
    for stream in ("orders", "payments", "clicks"):
        for partition in range(PARTITIONS):
            newest = ""
            for record in records:
                if (record.stream, record.partition) != (stream, partition) or record.kind in ("malformed", "ahead"):
                    continue
                at = json.loads(record.value)["at"]
                behind_s = _seconds(max(newest, at)) - _seconds(at)
                assert (behind_s > DISORDER_S) == (record.kind == "late"), (record, newest)
                newest = max(newest, at)


def test_producers_pause_and_everybody_sleeps_now_and_then() -> None:
    records = make(1)

    def longest_gap(stream: str) -> float:
        sent = [record.sent_s for record in records if record.stream == stream]
        return max(later - earlier for earlier, later in pairwise(sent))

    assert 20 <= longest_gap("orders") < 30 and 20 <= longest_gap("payments") < 30 and longest_gap("clicks") > 40


def _seconds(at: str) -> float:
    return (datetime.fromisoformat(at) - FIRST_DAY) / timedelta(seconds=1)
