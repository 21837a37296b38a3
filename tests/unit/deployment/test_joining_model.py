"""A source that queries join while its log is trimmed, with every delay and loss: nobody who was let in ever lacks a row.

The decisions are the real ones (`LogClaims`, `StreamClaims`, `join`, `settled`); what carries them is a model: messages that
come late or never, a source and a monitor that begin again, a look into the log whose answer is old when it is written, also
by a monitor that is gone."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from deployment.claims import LogClaims, Trim
from deployment.joined_sources import join, settled
from deployment.layout import layout_of
from deployment.query_record import QueryRecord
from deployment.stream_claims import AskToHold, LookForRows, StreamClaims
from reconcile.events import InstanceId
from tests.thoroughness import some
from tests.unit.deployment.test_joined_sources import SITES, record

KEY, READER = "jfk/0", InstanceId("main", "r0", 0)
SECOND = 1_000_000


class Source:
    """The writer of the log. A trim is carried out some time after it was allowed."""

    def __init__(self) -> None:
        self.first_id = 0
        self.end = 0
        self.begin()

    def begin(self) -> None:
        """What it was told is forgotten."""
        self.needed, self.holds = 0, list[str]()

    def take(self, needed: int, claim: str | None) -> None:
        self.needed = needed
        if claim is not None:
            self.holds.append(claim)

    def trim(self) -> None:
        self.first_id = max(self.first_id, self.needed)


@dataclass
class World:
    rng: random.Random
    now: int = 0
    source: Source = field(default_factory=Source)
    records: dict[str, QueryRecord] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    to_source: deque[tuple[int, str | None]] = field(default_factory=deque)
    to_monitor: deque[Callable[[], None]] = field(default_factory=deque)
    looks: deque[tuple[QueryRecord, bool]] = field(default_factory=deque)
    joined: int = 0

    def __post_init__(self) -> None:
        self.records["first"] = record("first", "jfk")
        self.begin_monitor()

    def begin_monitor(self) -> None:
        self.claims, self.joining = dict[str, LogClaims](), StreamClaims()
        self.to_monitor.clear()
        for known in self.records.values():
            self.hear_of(known)

    def hear_of(self, known: QueryRecord) -> None:
        if known.sources_of("jfk") != "first":
            self.claims.pop(known.name, None)  # it reads another log
        elif known.name not in self.claims:
            self.claims[known.name] = LogClaims(self.now)
            self.claims[known.name].expect({KEY: [READER]}, 3_600 * SECOND, self.now)
        self.joining.change(known.name, known, layout_of(known, SITES), self.now)

    def readers(self) -> list[str]:
        """The queries that run, and read the log."""
        return [name for name, each in self.records.items() if each.is_placed and each.sources_of("jfk") == "first"]

    # Steps

    def apply(self) -> None:
        if len(self.records) < 6:
            made = join(record(f"q{len(self.records)}", "jfk"), self.records)
            self.records[made.name] = made
            self.to_monitor.append(lambda: self.hear_of(self.records[made.name]))

    def read(self) -> None:
        name = self.rng.choice(self.readers())
        position = self.positions.get(name, 0)
        assert position >= self.source.first_id, f"{name} needs {position}, and the log begins with {self.source.first_id}"
        self.positions[name] = position = self.rng.randint(position, self.source.end)

        def acknowledge() -> None:
            if name in self.claims:
                self.claims[name].acknowledge(READER, [(KEY, position)], self.now)

        self.to_monitor.append(acknowledge)

    def write(self) -> None:
        self.source.end += self.rng.randint(1, 20)

    def say_status(self) -> None:
        holds = tuple(self.source.holds)
        self.to_monitor.append(lambda: self.joining.hear("source.first.jfk", holds))

    def turn_monitor(self) -> None:
        self.now += self.rng.choice((SECOND // 10, SECOND, SECOND))
        for _ in range(self.rng.randint(0, len(self.to_monitor))):
            self.to_monitor.popleft()()
        least = min((claims.needed_of(KEY) for claims in self.claims.values()), default=0)
        for claims in self.claims.values():
            for effect in claims.tick(self.now, True, {KEY: least}):
                if isinstance(effect, Trim):
                    self.send(effect.needed[KEY], None)
        for step in self.joining.tick(self.records, self.now):
            match step:
                case AskToHold(claim=claim):
                    self.send(0, claim)
                case LookForRows(claimed, streams):
                    self.looks.append((claimed, "jfk" in streams and self.source.first_id == 0))

    def send(self, needed: int, claim: str | None) -> None:
        if self.rng.random() < 0.8:
            self.to_source.append((needed, claim))

    def settle(self) -> None:
        if self.looks:
            claimed, is_held = self.looks.popleft()
            if self.records[claimed.name] == claimed:
                written = settled(claimed, ["jfk"] if is_held else [], self.records)
                self.records[claimed.name] = written
                self.joined += written.sources_of("jfk") == "first"
                self.to_monitor.append(lambda: self.hear_of(self.records[claimed.name]))

    def turn_source(self) -> None:
        for _ in range(self.rng.randint(0, len(self.to_source))):
            self.source.take(*self.to_source.popleft())

    def begin_source(self) -> None:
        self.source.begin()
        self.to_source.clear()  # it reads what comes from now on

    def go(self, steps: int) -> None:
        often = [self.read, self.write, self.turn_monitor, self.turn_source, self.source.trim, self.say_status, self.settle]
        for _ in range(steps):
            chance = self.rng.random()
            if chance < 0.02:
                self.apply()
            elif chance < 0.023:
                self.begin_source()
            elif chance < 0.026:
                self.begin_monitor()
            else:
                self.rng.choice(often)()


@pytest.mark.parametrize("seed", range(some(500)))
def test_who_has_joined_a_log_never_lacks_a_row_of_it(seed: int) -> None:
    World(random.Random(seed)).go(600)


def test_queries_do_join() -> None:
    worlds = [World(random.Random(seed)) for seed in range(30)]
    for world in worlds:
        world.go(600)
    assert sum(world.joined for world in worlds) >= 20
    assert any(world.source.first_id > 0 for world in worlds if world.joined)


def test_without_the_holds_rows_would_be_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look alone is not enough: a trim that was allowed before may come after it."""
    tick = StreamClaims.tick

    def impatient(self: StreamClaims, records: dict[str, QueryRecord], now: int) -> list[AskToHold | LookForRows]:
        for claim in self._claims.values():
            claim.held |= set(claim.roles.values())
        return tick(self, records, now)

    monkeypatch.setattr(StreamClaims, "tick", impatient)
    with pytest.raises(AssertionError, match="needs 0, and the log begins"):
        for seed in range(300):
            World(random.Random(seed)).go(600)
