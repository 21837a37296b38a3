"""The monitor and the egresses of two sites take a query from one version to another, with late news, stale statuses, deaths at
every step and cuts of the streams: all sites change at one time, and clients have each row once. What decides is what runs:
`Evolution` and `EgressSwitch`."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from boreal.model.frames import Boundary, Data, Frame, LogId, Origin
from boreal.query.spec import load_query
from deployment.evolution import EgressReport, Evolution, VersionProgress, evolve, roll_back, settle, state_of
from deployment.layout import make_layout
from deployment.query_record import QueryRecord
from logs.egress_switch import ClientFrame, EgressSwitch, NextVersion
from tests.thoroughness import some

SECOND = 1_000_000
ROW_US = 100_000
"""Each version has a row at each multiple of this."""
BUCKET_US = 250_000
SPEC: dict[str, Any] = {
    "name": "q",
    "streams": {"s": {"topic": "t", "time": "at", "schema": {"k": "string", "v": "int"}}},
    "operators": {"each": {"map": "s", "select": {"k": "k"}}},
    "output": "each",
    "delay_threshold": "3s",
    "engine": "native",
    "tuning": {"bucket": "250ms"},
}
OTHER = {**SPEC, "operators": {"each": {"map": "s", "select": {"k": "k", "v": "v"}}}}
SITES = ("a", "b")
OUT = LogId("each@egress", "r0", 0)
ORIGIN = Origin("r0", 1)


def rows(first_id: int, times: list[int], tentative: bool = False) -> Data:
    columns = [pa.array(times, pa.int64())]
    batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema([pa.field("time", pa.int64(), nullable=False)]))
    return Data(ORIGIN, 0, first_id, batch, tentative, ((times[-1] + 1, 0),), times[-1] + 1)


class Site:
    """The egress of a site: its output, which outlives it, and its present life."""

    def __init__(self, name: str, record: QueryRecord) -> None:
        self.name = name
        self.given: list[tuple[int, int, int]] = []
        """Of each stable row at clients: its id, its version, its time."""
        self.version = record.version
        self.switched_at: list[int] = []
        self.through = 0
        self.is_cut = False
        self.begin(record)

    def begin(self, record: QueryRecord) -> None:
        """A new life, which knows the newest record."""
        self.switch = EgressSwitch(len(self.given), max(self.through, self.given[-1][2] if self.given else 0))
        self.position = self.given[-1][2] + 1 if self.given and self.given[-1][2] >= self.through else self.through
        self.next_id = len(self.given)
        self.known = record
        self.said: EgressReport | None = None
        self.hear(record)

    def hear(self, record: QueryRecord) -> None:
        if record.revision < self.known.revision:
            return
        self.known, following = record, None
        if record.takeover is not None and record.takeover.to != self.version:
            takeover = record.takeover
            plan = make_layout(load_query(OTHER), SITES, f"q-{takeover.to}").egress_plan(self.name)
            following = NextVersion(takeover.to, takeover.at, takeover.agreed, plan, {})
        self._write(self.switch.prepare(following))

    def emit(self, to: int, is_tentative: bool) -> None:
        """The version that it reads has come to this time."""
        times = list(range(-(-self.position // ROW_US) * ROW_US, to, ROW_US))
        if is_tentative:
            if times:
                self._write(self.switch.take(OUT, rows(self.next_id, times, True)))
            return
        frames: list[Frame] = [rows(self.next_id, times)] if times else []
        frames.append(Boundary(ORIGIN, 0, to, False, 0, 0))
        self.next_id += len(times)
        self.position = max(to, self.position)
        life = self.switch
        for frame in frames:
            if self.switch is life:
                self._write(life.take(OUT, frame))

    def say(self) -> None:
        state = "UP_FAILURE" if self.is_cut else "STABLE"
        self.said = EgressReport(self.version, state, self.through or None, self.switch.status())

    def _write(self, given: list[ClientFrame]) -> None:
        for each in given:
            frame = each.frame
            if isinstance(frame, Data) and not frame.tentative:
                times = frame.batch.column(0).to_pylist()
                self.given += [(frame.first_id + place, self.version, time) for place, time in enumerate(times)]
            elif isinstance(frame, Boundary):
                self.through = max(self.through, frame.time)
            if each.is_last:
                assert isinstance(frame, Boundary) and self.switch.has_ended
                self.version = 3 - self.version
                self.switched_at.append(frame.time)
                self.begin(self.known)


class Installation:
    def __init__(self, seed: int, sites: tuple[str, ...]) -> None:
        self.draw = random.Random(seed)
        self.record = evolve(QueryRecord("q", load_query(SPEC).dump(), 1), load_query(OTHER), "earliest")
        self.read = self.record
        """The newest record that the monitor has read."""
        self.sites = {name: Site(name, self.record) for name in sites}
        self.evolution = Evolution()
        self.clock = 10 * SECOND
        self.agreed: dict[int, int] = {}
        self.is_calm = False
        self.audible = self.draw.choice([1.0, 0.9, 0.5])
        """How likely the newest status of an egress is not too old."""

    def step(self) -> None:
        draw = self.draw
        site = draw.choice(list(self.sites.values()))
        self.clock += draw.choice([0, 0, 50_000, 300_000])
        what = draw.random()
        if what < 0.35 and not (site.is_cut and not self.is_calm):
            site.is_cut = False
            site.emit(min(self.clock, site.position + draw.choice([ROW_US, SECOND, 60 * SECOND])), False)
        elif what < 0.45:
            site.hear(self.record)
        elif what < 0.6:
            site.say()
        elif what < 0.7:
            self.read = self.record
        elif what < 0.9 or self.is_calm:
            self.watch()
        elif what < 0.93:
            site.begin(self.record)
        elif what < 0.96:
            site.is_cut = True
            site.emit(self.clock, True)
        elif what < 0.98:
            site.is_cut = False
        else:
            self.evolution = Evolution()

    def watch(self) -> None:
        """The monitor looks, and may die before or after it has written."""
        is_heard = {name: self.is_calm or self.draw.random() < self.audible for name in self.sites}
        heard = {name: site.said for name, site in self.sites.items() if site.said is not None and is_heard[name]}
        wanted = self.evolution.next(self.read, tuple(self.sites), heard, VersionProgress("STABLE", self.clock))
        dies = not self.is_calm and self.draw.random() < 0.2
        is_lost = dies and self.draw.random() < 0.5
        if wanted is not None and self.record == self.read and not is_lost:
            self.record = wanted
            if wanted.takeover is not None and wanted.takeover.agreed:
                self.agreed[wanted.takeover.at] = wanted.takeover.to
        if dies:
            self.evolution, self.read = Evolution(), self.record

    def until(self, state: str, steps: int) -> None:
        for number in range(steps):
            if state_of(self.record) == state:
                return
            self.is_calm = number > steps // 2
            self.step()
        raise AssertionError(f"{state} is never reached: {self.record}, {self.evolution.waits_for}")

    def check(self) -> None:
        """Each site has given each row once, and all have changed at the same times."""
        changes = {tuple(site.switched_at) for site in self.sites.values()}
        assert len(changes) == 1, changes
        [times] = changes
        assert set(times) <= self.agreed.keys()
        for site in self.sites.values():
            assert [id_ for id_, _, _ in site.given] == list(range(len(site.given)))
            first = site.given[0][2]
            assert [time for *_, time in site.given] == [first + place * ROW_US for place in range(len(site.given))]
            for _, version, time in site.given:
                assert version == 1 + sum(at <= time for at in times) % 2, (version, time, times)
            assert all(at % BUCKET_US == 0 for at in times)


@pytest.mark.parametrize("sites", [SITES, SITES[:1]], ids=["two sites", "one site"])
@pytest.mark.parametrize("seed", range(some(150, 30)))
def test_all_sites_change_at_one_time_whoever_dies_or_is_cut_off(seed: int, sites: tuple[str, ...]) -> None:
    installation = Installation(seed, sites)
    installation.until("taken_over", 4_000)
    assert installation.record.version == 2
    installation.check()
    installation.record = roll_back(installation.record)
    installation.until("rolled_back", 4_000)
    assert installation.record.version == 1
    installation.record = roll_back(installation.record)
    installation.until("taken_over", 4_000)
    for _ in range(200):
        installation.step()
    installation.check()
    assert {len(site.switched_at) for site in installation.sites.values()} == {3}
    assert replace(settle(installation.record), revision=0).version == 2
