"""A source in virtual time over the shop's records: pauses, quiet partitions, frozen brokers and wrong clocks cost no row that
is not late by itself, and hold back nobody for longer than they must."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache

import pytest

from boreal.model.frames import Data, Origin
from boreal.query.plan import Edge
from boreal.query.spec import load_query
from examples.shop.generate import FIRST_DAY, PARTITIONS, Record, make
from intake.intake import Intake, SourceStream
from intake.place import SourcePlace
from intake.user_records import PartitionRecords
from tests.examples.test_shop import EXAMPLES
from tests.thoroughness import every

START = round(FIRST_DAY.timestamp() * 1e6)
TICK_S = 0.2
SECONDS = 300.0
SHOP_SECONDS = SECONDS - 25
"""What is ordered in the end is paid later."""


@dataclass(frozen=True)
class Kept:
    """A record as the topic holds it."""

    offset: int
    value: bytes
    headers: Sequence[tuple[str, bytes | None]] = ()
    key: bytes | None = None
    timestamp: int = 0


@dataclass(frozen=True)
class Frozen:
    """A broker that is out of reach for a while, for the producers and for the source: with some partitions, or all."""

    from_s: float
    to_s: float
    partitions: tuple[int, ...] = tuple(range(PARTITIONS))

    def holds(self, partition: int, at_s: float) -> bool:
        return partition in self.partitions and self.from_s <= at_s < self.to_s


@dataclass
class Seen:
    """What a source has made of a stream. reach: how far it was, by the second. idle: the idle partitions."""

    rows: int = 0
    refused: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    reach: dict[int, float] = field(default_factory=dict)
    idle: dict[int, list[int]] = field(default_factory=dict)


def drive(stream: str, records: Sequence[Record], frozen: Sequence[Frozen] = (), **settings: str) -> Seen:
    """A life of a source from an empty topic on, looking at it every TICK_S."""
    name = "revenue" if stream == "payments" else "activity"
    spec = load_query(EXAMPLES / f"{name}.yaml").streams[stream]
    spec = type(spec).model_validate({**spec.model_dump(mode="json", by_alias=True), **settings})
    edge = Edge("s", "s", spec.attributes, 1, 1, (), True)
    intake = Intake(SourceStream("s", spec, "topic", (edge,), 100_000), Origin("", 1), SourcePlace({"s/0": 0}))
    topic = written([record for record in records if record.stream == stream], frozen)
    intake.progress.watch(range(PARTITIONS), START)
    taken = dict.fromkeys(range(PARTITIONS), 0)
    seen = Seen()
    promise = intake.boundary
    for tick in range(round(SECONDS / TICK_S)):
        at_s = tick * TICK_S
        now = START + round(at_s * 1e6)
        heard = [p for p in range(PARTITIONS) if not any(one.holds(p, at_s) for one in frozen)]
        found: dict[int, list[Kept]] = defaultdict(list)
        for partition in heard:
            while taken[partition] < len(topic[partition]) and topic[partition][taken[partition]][0] <= at_s:
                found[partition].append(Kept(taken[partition], topic[partition][taken[partition]][1].encode()))
                taken[partition] += 1
        if found:
            batch = intake.take({partition: PartitionRecords.of(records) for partition, records in found.items()}, now)
            seen.rows += sum(frame.batch.num_rows for _, frame in batch.frames if isinstance(frame, Data))
            seen.refused += [letter.record for letter in batch.letters]
            seen.reasons += [letter.reason for letter in batch.letters]
        question = intake.ask(now)
        for partition in heard:
            intake.answer(partition, question, now)
        intake.heartbeat(now)
        assert intake.boundary >= promise
        promise = intake.boundary
        if tick % round(1 / TICK_S) == 0:
            seen.reach[round(at_s)] = (promise - START) / 1e6
            seen.idle[round(at_s)] = intake.progress.idle_partitions
    return seen


def written(records: Sequence[Record], frozen: Sequence[Frozen]) -> dict[int, list[tuple[float, str]]]:
    """When each record comes into its partition: what cannot be sent is sent, in its order, once the broker is back."""
    topic: dict[int, list[tuple[float, str]]] = {partition: [] for partition in range(PARTITIONS)}
    for record in records:
        at_s = record.sent_s
        for one in frozen:
            if one.holds(record.partition, at_s):
                at_s = one.to_s
        before_s = topic[record.partition][-1][0] if topic[record.partition] else 0.0
        topic[record.partition].append((max(at_s, before_s), record.value))
    return topic


def to_refuse(stream: str, records: Sequence[Record]) -> list[str]:
    return sorted(record.value for record in records if record.stream == stream and not record.counts)


OUTAGES = {
    "none": [],
    "all partitions": [Frozen(100, 131)],
    "all partitions in a pause": [Frozen(50, 81)],
    "all partitions, as a pause begins": [Frozen(30, 61)],
    "one partition": [Frozen(100, 131, (1,))],
    "one partition in a pause": [Frozen(45, 90, (0,))],
    "one after the other": [Frozen(50, 81, (0,)), Frozen(81.5, 112, (1,))],
    "all partitions in a quiet time": [Frozen(160, 191)],
}


@pytest.mark.parametrize(
    ("stream", "outage"),
    every(6, [(stream, outage) for stream in ("clicks", "orders", "payments") for outage in OUTAGES]),
)
def test_by_default_only_what_is_late_or_ahead_by_itself_is_refused(stream: str, outage: str) -> None:
    records = make(1, SHOP_SECONDS)
    seen = drive(stream, records, OUTAGES[outage])
    assert sorted(seen.refused) == to_refuse(stream, records)
    assert seen.rows == sum(record.counts and record.stream == stream
        for record in records)


@pytest.mark.parametrize("outage", every(4, OUTAGES))
def test_under_the_clock_an_outage_loses_nothing_of_producers_that_do_not_pause(outage: str) -> None:
    records = make(1, SHOP_SECONDS)
    seen = drive("clicks", records, OUTAGES[outage], boundary="clock")
    # Some late ones come in a grace, and are not late then.
    assert set(seen.refused) <= set(to_refuse("clicks", records))


def test_under_the_clock_what_a_producer_sends_after_its_pause_is_late() -> None:
    """Such is that policy: it leaves the producers `disorder`, and no more."""
    records = make(1, SHOP_SECONDS)
    seen = drive("orders", records, boundary="clock")
    assert len(seen.refused) > len(to_refuse("orders", records)) + 10


def test_a_pause_holds_the_boundary_and_a_quiet_time_only_until_the_stream_is_idle() -> None:
    records = make(1, SHOP_SECONDS)
    orders, clicks = drive("orders", records), drive("clicks", records)
    assert orders.reach[59] < 41 and orders.reach[65] > 60 and not any(orders.idle.values())
    assert clicks.reach[175] < 150 and clicks.idle[175] == []
    assert clicks.idle[194] == [0, 1] and 194 - 1.8 - 2 - 0.25 - TICK_S <= clicks.reach[194] < 194 - 2
    assert clicks.idle[198] == [] and clicks.reach[205] > 200


def test_where_one_partition_is_quiet_the_other_goes_on() -> None:
    records = [r for r in make(1, SHOP_SECONDS) if r.partition == 0 or r.sent_s < 100]
    seen = drive("clicks", records)
    assert seen.reach[128] < 100
    assert seen.idle[133] == [1] and 133 - 4.5 < seen.reach[133] <= 133 - 2
    assert sorted(seen.refused) == to_refuse("clicks", records)


def test_a_frozen_broker_holds_the_boundary_and_its_producers_backlog_gets_a_grace() -> None:
    records = make(1, SHOP_SECONDS)
    for boundary in ("data", "clock"):
        seen = drive("clicks", records, [Frozen(100, 131)], boundary=boundary)
        assert seen.reach[99] <= seen.reach[130] < 100
        assert seen.reach[170] > 146, boundary
    assert seen.reach[160] < 100, "under the clock for the whole grace"


def skewed(records: Sequence[Record], by_s: float, is_skewed: Callable[[Record], bool]) -> list[Record]:
    """The records, some of them by a clock that is fast by so many seconds."""

    def shift(record: Record) -> Record:
        if not record.counts or not is_skewed(record):
            return record
        fields = json.loads(record.value)
        moment = type(FIRST_DAY).fromisoformat(fields["at"]) + timedelta(seconds=by_s)
        return replace(record, value=json.dumps({**fields, "at": moment.isoformat().replace("+00:00", "Z")}), kind="skewed")

    return [shift(record) for record in records]


@cache
def clicks_alone() -> Seen:
    return drive("clicks", make(1, SHOP_SECONDS))


@pytest.mark.parametrize(("by_s", "is_believed"), every(4, [(5, True), (30, True), (3_600, False), (-600, False)]))
def test_a_producer_with_a_wrong_clock_costs_the_others_nothing(by_s: float, is_believed: bool) -> None:
    records = skewed(make(1, SHOP_SECONDS), by_s, lambda record: '"cz"' in record.value)
    seen = drive("clicks", records)
    good = clicks_alone()
    wrong = [record.value for record in records if record.kind == "skewed" and record.stream == "clicks"]
    others = [r.value for r in records if r.stream == "clicks" and r.kind not in ("skewed", "good", "duplicate")]
    assert sorted(seen.refused) == sorted(others if is_believed else others + wrong)
    assert all(abs(seen.reach[second] - good.reach[second]) < 5 for second in range(10, 270))


def test_a_producer_with_a_wrong_clock_holds_back_nobody_though_a_partition_is_all_its_own() -> None:
    records = skewed(make(1, SHOP_SECONDS), 3_600, lambda record: record.partition == 1)
    seen = drive("clicks", records)
    assert seen.reach[10] > 5 and seen.reach[100] > 95
    assert not [r for r in seen.refused if r in {one.value for one in records if one.counts}]
