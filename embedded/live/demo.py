"""The demo's input: the departures of New York of one day, from 06:00 to 22:00, over and over, each time a day later.

The streams are replayed at SPEED, so a day takes 96 s. As in a replay of files, each stream says at every boundary interval how
far its time has come. Nothing is stored: which record has which offset follows from the offset.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files

import numpy as np

from boreal.query.spec import Query, load_query
from intake.intake import BOUNDARY_HEADER
from intake.user_records import Headers, PartitionRecords

SPEED = 600
"""Event time over run time."""
BOUNDARY_EVERY_US = 100_000
"""How often a stream says how far it has come, in run time."""
AIRPORTS = ("ewr", "jfk", "lga")

_DATA = "flights_2013-01-02.csv.gz"
_BEGIN = datetime(2013, 1, 2, 6, tzinfo=UTC)
_DAY = timedelta(hours=16)
_DAY_RUN_US = round(_DAY / timedelta(microseconds=1)) // SPEED

_QUERY = """
name: departures
streams:
  ewr: {topic: flights.ewr, time: departed_at, schema: {carrier: string, dest: string, dep_delay: double}, boundary: producer}
  jfk: {topic: flights.jfk, time: departed_at, schema: {carrier: string, dest: string, dep_delay: double}, boundary: producer}
  lga: {topic: flights.lga, time: departed_at, schema: {carrier: string, dest: string, dep_delay: double}, boundary: producer}
operators:
  all:  {union: [ewr, jfk, lga]}
  late: {filter: all, where: "dep_delay > 15"}
  by_carrier:
    aggregate: late
    window: {tumbling: 10m}
    by: [carrier]
    compute: {flights: count(*), mean_delay: avg(dep_delay)}
output: by_carrier
delay_threshold: 3s
reconcile: checkpoint_redo
policy: {failure: process, stabilization: process}
replicas: 2
engine: native
tuning: {boundary_interval: 100ms, heartbeat: 200ms}
"""


def demo_query() -> Query:
    """The query of the demo: late departures per carrier and ten minutes."""
    return load_query(_QUERY)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A record of a day."""

    run_us: int
    """When it arrives, from the beginning of the day, in microseconds of run time."""
    time: datetime
    """The event time on the first day."""
    row: tuple[str, str, float] | None
    """(carrier, destination, delay of the departure in minutes); None for a heartbeat."""


@cache
def _day_of(airport: str) -> tuple[_Entry, ...]:
    """The records of a day at an airport, in order. A heartbeat comes before the rows of its time."""
    text = gzip.decompress(files(__package__).joinpath(_DATA).read_bytes()).decode()
    entries = []
    for row in csv.DictReader(io.StringIO(text)):
        time = datetime.fromisoformat(row["departed_at"])
        if row["origin"] == airport and _BEGIN <= time < _BEGIN + _DAY:
            entries.append(_Entry(_run_us(time), time, (row["carrier"], row["dest"], float(row["dep_delay"]))))
    step = timedelta(microseconds=BOUNDARY_EVERY_US * SPEED)
    beats = [_BEGIN + step * number for number in range(_DAY // step)]
    entries += [_Entry(_run_us(time), time, None) for time in beats]
    return tuple(sorted(entries, key=lambda entry: (entry.run_us, entry.row is not None)))


def _run_us(time: datetime) -> int:
    return round((time - _BEGIN) / timedelta(microseconds=1)) // SPEED


class DemoTopic:
    """The endless stream of one airport."""

    def __init__(self, airport: str) -> None:
        self._day = _day_of(airport)
        self._arrivals = [entry.run_us for entry in self._day]
        self._begun_at = 0

    def reached(self, offset: int) -> int:
        """When the record of this offset arrives, from the beginning of the stream, in microseconds of run time."""
        day, place = divmod(offset, len(self._day))
        return day * _DAY_RUN_US + self._arrivals[place]

    def begin(self, begun_at: int) -> None:
        """The stream begins at this clock value, in microseconds; in the past, if a part of it has been read already."""
        self._begun_at = begun_at

    def end(self, now: int) -> int:
        day, run_us = divmod(max(now - self._begun_at, -1), _DAY_RUN_US)
        return max(day * len(self._day) + bisect_right(self._arrivals, run_us), 0)

    def read(self, offset: int, end: int) -> PartitionRecords:
        found = [self._record(place) for place in range(offset, end)]
        headers = {index: headers for index, (_, headers) in enumerate(found) if headers}
        return PartitionRecords(np.arange(offset, end), [value for value, _ in found], headers)

    def trim(self, offset: int) -> None:
        """Nothing is stored."""

    def begin_at(self, since: int | None) -> int:
        return 0

    def _record(self, offset: int) -> tuple[bytes | None, Headers]:
        """The value and the headers of a record."""
        day, place = divmod(offset, len(self._day))
        entry = self._day[place]
        time = (entry.time + timedelta(days=day)).isoformat()
        if entry.row is None:
            return None, ((BOUNDARY_HEADER, time.encode()),)
        carrier, dest, delay = entry.row
        row = {"departed_at": time, "carrier": carrier, "dest": dest, "dep_delay": delay}
        return json.dumps(row).encode(), ()
