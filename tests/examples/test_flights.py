"""Both flight queries against an independent computation over the raw CSV files, under every mode and many faults. Each fault
meets another mode in each query; the simulator combines all freely."""

from __future__ import annotations

import io
import json
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import duckdb
import pytest

from boreal.query.planner import Overrides, plan
from boreal.query.spec import Mode, Query, load_query
from embedded.faults import check_faults, parse_fault
from embedded.file_sources import SourceRows, read_source
from embedded.paced_sources import Pace
from embedded.run import Outcome, Run
from embedded.world import ModelClock
from examples.flights.prepare import prepare
from logs.memory_checkpoints import MemoryCheckpointStore
from logs.memory_log import MemoryLogStore
from tests.thoroughness import IS_THOROUGH, every

pytestmark = pytest.mark.xdist_group("flights")

EXAMPLES = Path(__file__).parents[2] / "examples" / "flights"

FAULTS = {
    "none": [],
    "short cut": ["cut jfk at 1s for 200ms"],
    "long cut": ["cut jfk at 1s for 2s"],
    "cut past the end": ["cut lga at 4s for 4s"],
    "two cuts at once": ["cut jfk at 1s for 2s", "cut ewr at 1500ms for 2s"],
    "rolling cuts": ["cut jfk at 1s for 1s", "cut ewr at 1800ms for 1s", "cut lga at 2600ms for 1s"],
    "cut in mid-correction": ["cut jfk at 1s for 1500ms", "cut ewr at 2510ms for 1s"],
    "replica crashes": ["crash main.r0 at 1s for 1s"],
    "replica crashes while tentative, losing its checkpoint": [
        "cut jfk at 1s for 2s",
        "crash main.r1 at 2s for 500ms losing checkpoint",
    ],
    "one replica cut off": ["cut main.r0 at 1s for 2s"],
    "a zombie": ["freeze main.r0 at 1s for 1s", "cut ewr at 1200ms for 1500ms"],
    "slow, and cut from one replica": ["slow jfk by 300ms at 1s for 2s", "cut lga to r1 at 1500ms for 1s"],
}

DEPARTURES = """
    select time_bucket(interval 10 minutes, departed_at) as window_start, window_start + interval 10 minutes as window_end,
           carrier, count(*) as flights, avg(dep_delay) as mean_delay
    from flights where dep_delay > 15
    group by window_start, carrier order by window_end, carrier
"""

WEATHER = """
    with late as (select row_number() over () as flight_number, * from flights where dep_delay > 15),
    joined as (
        select case when w.time is null then f.departed_at + interval 30 minutes
                    else greatest(f.departed_at, w.time) end as moment,
               f.origin, f.dep_delay, w.wind_speed, w.visib
        from late f left join weather w
          on f.origin = w.origin and abs(epoch_us(f.departed_at) - epoch_us(w.time)) <= 30 * 60 * 1000000
    )
    select time_bucket(interval 1 hour, moment) as window_start, window_start + interval 1 hour as window_end, origin,
           count(*) as flights, avg(dep_delay) as mean_delay, avg(wind_speed) as mean_wind, min(visib) as worst_view
    from joined group by window_start, origin order by window_end, origin
"""


@cache
def oracle(folder: Path, sql: str) -> list[dict[str, Any]]:
    """The same question put to DuckDB, over the CSV files themselves. Not to be changed: others get the same rows."""
    with duckdb.connect() as database:
        database.execute("set timezone = 'UTC'")
        files = [str(folder / f"{airport}.csv") for airport in ("ewr", "jfk", "lga")]
        columns = "departed_at::timestamp as departed_at, origin, carrier, dep_delay::double as dep_delay"
        database.execute(f"create view flights as select {columns} from read_csv({files}, nullstr=['', 'NA'])")
        names = "time::timestamp as time, origin, wind_speed::double as wind_speed, visib::double as visib"
        database.execute(f"create view weather as select {names} from read_csv('{folder}/weather.csv', nullstr=['', 'NA'])")
        found = database.execute(sql)
        titles = [column[0] for column in found.description]
        return [dict(zip(titles, row, strict=True)) for row in found.fetchall()]


def assert_same(rows: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Row for row, in the stated order: by window end, then by key; floats within 1e-9."""
    assert len(rows) == len(expected)
    for row, want in zip(rows, expected, strict=True):
        assert list(row) == list(want)
        for name, value in want.items():
            if hasattr(value, "isoformat"):
                value = value.strftime("%Y-%m-%dT%H:%M:%SZ")
            assert row[name] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), (name, row, want)


def fold(changes: list[dict[str, Any]]) -> list[Any]:
    """What a client that follows the changelog is left with."""
    held: list[tuple[int, Any]] = []
    for record in changes:
        if record["type"] == "undo":
            held = [(seq, data) for seq, data in held if seq <= record["after_seq"]]
        elif record["type"] in ("stable", "tentative"):
            held.append((record["seq"], record["data"]))
    return [data for _, data in held]


def run(query: Query, rows: dict[str, SourceRows], faults: list[str], mode: Mode, rate: float) -> tuple[Outcome, list, list]:
    planned = plan(query, Overrides(mode=mode, delay_threshold_us=800_000))
    parsed = [parse_fault(fault) for fault in faults]
    check_faults(parsed, planned)
    changes, stable = io.StringIO(), io.StringIO()
    logs, store = MemoryLogStore(), MemoryCheckpointStore()
    outcome = Run(planned, rows, Pace(rate=rate), parsed, ModelClock(), logs, store, changes=changes, stable=stable).go()
    told, given = ([json.loads(line) for line in text.getvalue().splitlines()] for text in (changes, stable))
    return outcome, told, given


@pytest.fixture(scope="session")
def month(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("month")
    prepare(folder, 1)
    return folder


@pytest.fixture(scope="session")
def year(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("year")
    prepare(folder)
    return folder


@cache
def rows_of(folder: Path, name: str) -> dict[str, SourceRows]:
    streams = load_query(EXAMPLES / f"{name}.yaml").streams
    return {stream: read_source(stream, spec, str(folder / f"{stream}.csv")) for stream, spec in streams.items()}


def check(folder: Path, name: str, sql: str, faults: list[str], mode: Mode, rate: float) -> None:
    query = load_query(EXAMPLES / f"{name}.yaml")
    outcome, changes, stable = run(query, rows_of(folder, name), faults, mode, rate)
    assert outcome.is_stable
    assert_same(stable, oracle(folder, sql))
    assert fold(changes) == stable
    assert outcome.report["n_tentative"] == outcome.report["n_undone"]


MODES = cycle(Mode)
CASES = [
    pytest.param(name, sql, faults, next(MODES), id=f"{name}-{faults}")
    for number, faults in enumerate(FAULTS)
    for name, sql in (("departures", DEPARTURES), ("weather", WEATHER))
    if IS_THOROUGH or (name == "departures") == (number % 3 != 0)
]


@pytest.mark.parametrize(("name", "sql", "faults", "mode"), every(6, CASES))
def test_a_month_under_faults(month: Path, name: str, sql: str, faults: str, mode: Mode) -> None:
    check(month, name, sql, FAULTS[faults], mode, 5_000)


LONG_MODES = list(Mode) if IS_THOROUGH else [Mode.CHECKPOINT_REDO]
LONG = [
    *(pytest.param("departures", DEPARTURES, mode, id=f"departures-{mode}") for mode in LONG_MODES),
    *([pytest.param("weather", WEATHER, next(MODES), id="weather")] if IS_THOROUGH else []),
]


@pytest.mark.soak
@pytest.mark.parametrize(("name", "sql", "mode"), LONG)
def test_the_year_under_a_long_cut(year: Path, name: str, sql: str, mode: Mode) -> None:
    check(year, name, sql, ["cut jfk at 1s for 2s"], mode, 60_000)
