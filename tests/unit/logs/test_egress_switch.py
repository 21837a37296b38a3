"""An egress goes from one version of a query to another at an event time, and is killed at any frame: its clients have each row
once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from boreal.model.frames import Boundary, Data, Frame, LogId
from boreal.query.plan import EGRESS
from deployment.layout import Layout
from formats.changelog import Changelog, ChangelogPlace, RowRecords
from logs.egress_restart import OutTail, egress_restart
from logs.egress_switch import cut_at, first_ids_from, last_boundary
from logs.memory_log import MemoryLogStore
from reconcile.events import Append, Effect, Follow, Frames, InstanceId, Tick, Unfollow
from reconcile.instance import Instance
from sunion.tape import BEGINNING
from tests.harness import Ran, RecordedLog, query_of, run
from tests.thoroughness import some

ME = InstanceId(EGRESS, "r0", 0)
BUCKET_US = 100_000


def ran(compute: dict[str, str], window: dict[str, str], shards: int, *faults: str) -> Ran:
    operators = {
        "each": {"union": ["a", "b"]},
        "all": {"aggregate": "each", "window": window, "by": ["k"], "compute": compute},
    }
    return run(query_of(operators, streams=("a", "b"), shards=shards), *faults, rows="generate:40,8")


def logs_of(of: Ran) -> MemoryLogStore:
    """All that was ever in the logs of the output."""
    store = MemoryLogStore()
    for logs in Layout(of.plan, ("a",)).input_logs(ME).values():
        for log in logs:
            written = of.logs.open(log)
            assert isinstance(written, RecordedLog)
            for entry in written.history:
                store.open(log).append(entry.frame)
    return store


@dataclass
class Output:
    """q.out: what was written, and which version comes next."""

    frames: list[Frame] = field(default_factory=list)
    version: int = 0
    place: ChangelogPlace | None = None
    incarnation: int = 0
    rows: list[tuple[int, Any]] = field(default_factory=list)

    def tail(self) -> OutTail:
        stable = [frame for frame in self.frames if isinstance(frame, Data) and not frame.tentative]
        anchors = [frame.anchor for frame in self.frames if isinstance(frame, Boundary) and frame.anchor is not None]
        written_to = int(stable[-1].batch.column(0)[-1].as_py()) if stable else BEGINNING
        return OutTail(self.place, self.incarnation, anchors[-1] if anchors else None, written_to, 0, 0)


class Egress:
    """One life of the egress, with one version. kill: after so many frames it dies."""

    def __init__(
        self, output: Output, versions: list[tuple[Ran, MemoryLogStore]], at: int, kill: int, draw: random.Random
    ) -> None:
        self.output, self.versions, self.at, self.left, self.draw = output, versions, at, kill, draw
        self.of, self.logs = versions[output.version]
        plan = self.of.plan
        inputs = Layout(plan, ("a",)).input_logs(ME)
        restart, is_lossy = egress_restart(plan, output.tail(), inputs, self.logs.open)
        assert not is_lossy
        output.incarnation = restart.incarnation
        self.changelog = Changelog("q", plan.output.schema, plan.output_key, plan.bucket_us, place=output.place)
        self.instance = Instance(plan, ME, restart)
        self.offsets: dict[LogId, int] = {}
        self.is_over = False

    def live(self) -> None:
        now = 1_000_000_000
        self._perform(self.instance.begin(now))
        while not self.is_over and (open_ := [log for log, offset in self.offsets.items() if offset < self.logs.open(log).end]):
            log, now = self.draw.choice(open_), now + 10_000
            offset = self.offsets[log]
            items = tuple(self.logs.open(log).read(offset, self.draw.randint(1, 9)))
            self.offsets[log] = items[-1][0] + 1
            self._perform(self.instance.handle(Frames(log, items, self.logs.open(log).end), now))
            self._perform(self.instance.handle(Tick(now), now))
        for _ in range(200):
            if not self.is_over:
                now += 10_000
                self._perform(self.instance.handle(Tick(now), now))

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Follow):
                self.offsets[effect.log] = self.logs.open(effect.log).offset_after(effect.after_id)
            elif isinstance(effect, Unfollow):
                self.offsets.pop(effect.log, None)
            elif isinstance(effect, Append) and not self.is_over:
                self._take(effect.frame)

    def _take(self, frame: Frame) -> None:
        if self.output.version == 1:
            self._write(frame)
            return
        part, has_reached = cut_at(frame, self.at)
        if part is not None:
            self._write(part)
        if has_reached and not self.is_over:
            of, logs = self.versions[1]
            inputs = first_ids_from(of.plan, self.at, Layout(of.plan, ("a",)).input_logs(ME), logs.open)
            self._write(last_boundary(frame, self.at, of.plan, self.changelog.place.next_stable_id, inputs))
            if not self.is_over:
                self.output.version, self.is_over = 1, True

    def _write(self, frame: Frame) -> None:
        if self.left == 0:
            self.is_over = True
            return
        self.left -= 1
        given = self.changelog.take(frame, 0)
        self.output.frames.append(frame)
        self.output.place = self.changelog.place
        if isinstance(given, RowRecords) and not frame.tentative:  # type: ignore[union-attr]
            ids = range(given.frame.first_id, given.frame.first_id + given.frame.batch.num_rows)
            self.output.rows += zip(ids, given.frame.batch.to_pylist(), strict=True)


def stable_rows(of: Ran) -> Iterator[dict[str, Any]]:
    """All stable rows of a version, in the order in which it gave them."""
    out = of.logs.open(LogId(of.plan.output.name, "r0", 0))
    assert isinstance(out, RecordedLog)
    next_id = 0
    for entry in out.history:
        frame = entry.frame
        if isinstance(frame, Data) and not frame.tentative:
            yield from frame.batch.to_pylist()[max(next_id - frame.first_id, 0) :]
            next_id = max(next_id, frame.first_id + frame.batch.num_rows)


@pytest.fixture(scope="module")
def versions() -> list[tuple[Ran, MemoryLogStore]]:
    """Each had cuts of its own, so that its logs hold tentative rows, too."""
    old = ran({"n": "count(*)"}, {"tumbling": "500ms"}, 2, "cut a at 2s for 2s", "cut b at 5s for 1500ms")
    new = ran({"n": "count(*)", "most": "max(v)"}, {"session": "300ms"}, 1, "cut b at 3s for 2s")
    return [(version, logs_of(version)) for version in (old, new)]


@pytest.mark.parametrize("seed", range(some(100)))
def test_clients_have_each_row_once_of_the_version_of_its_time_wherever_the_egress_dies(
    versions: list[tuple[Ran, MemoryLogStore]], seed: int
) -> None:
    draw = random.Random(seed)
    old, new = (list(stable_rows(of)) for of, _ in versions)
    at = old[0]["time"] // BUCKET_US * BUCKET_US + draw.randrange(10, 60) * BUCKET_US
    output = Output()
    lives = 0
    while output.version == 0 or lives < 40:
        Egress(output, versions, at, draw.choice([0, 1, 2, 5, 20, 100, 10_000]), draw).live()
        lives += 1
        assert lives < 400, "it never takes over"
    Egress(output, versions, at, 1_000_000, draw).live()
    expected = [row for row in old if row["time"] < at] + [row for row in new if row["time"] >= at]
    assert [id_ for id_, _ in output.rows] == list(range(len(expected)))
    assert [row for _, row in output.rows] == expected
    assert any("most" in row for row in expected) and not all("most" in row for row in expected)
