"""A shop's records as real producers send them: orders, payments and clicks as JSON.

usage: python examples/shop/generate.py DIR [--seed N] [--seconds N]                 files for `boreal run`
       python examples/shop/generate.py --live HOST:PORT [--seed N] [--seconds N] [--speed N]      to Kafka, with present times

README.md beside this file says what is wrong with them. One seed makes the same records every time.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

STREAMS = ("orders", "payments", "clicks")
DISORDER_S = 2.0
"""No record is further behind one that was sent before it to the same partition, but for the late ones."""
LONGEST_WAY_S = 1.7
PAUSE_S = 20.0
PAUSE_EVERY_S = 100.0
PAUSES_AT_S = {"orders": 40.0, "payments": 75.0}
"""A producer that pauses sends afterwards what it would have sent before, in the order of time."""
QUIET_S = (150.0, 195.0)
"""Nobody clicks."""
LATE_S = 10.0
AHEAD_S = 3_600.0
PARTITIONS = 2
FIRST_DAY = datetime(2026, 1, 1, tzinfo=UTC)

MALFORMED = ('{"order_id": "o', "not JSON at all", "[1, 2, 3]", '{"order_id": "x", "amount": 3.5}', "")


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a stream. sent_s: when it is sent, in seconds from the start. kind: good, duplicate, malformed, late (by
    more than the disorder) or ahead (by an hour); the first two are to count."""

    stream: str
    partition: int
    sent_s: float
    value: str
    kind: str = "good"

    @property
    def counts(self) -> bool:
        return self.kind in ("good", "duplicate")


@dataclass(frozen=True, slots=True)
class _Event:
    """What happened at a time, in seconds from the start."""

    at_s: float
    fields: dict[str, object]


def make(seed: int = 1, seconds: float = 300.0, start: datetime = FIRST_DAY, speed: float = 1.0) -> list[Record]:
    """All records in the order in which they are sent. speed: the shop's seconds in one second; all but the hour that one
    record is ahead goes by the shop's seconds."""
    orders, payments = _orders(random.Random(f"{seed} orders"), seconds)
    clicks = _clicks(random.Random(f"{seed} clicks"), seconds)
    records = [
        record
        for stream, events in (("orders", orders), ("payments", payments), ("clicks", clicks))
        for record in _sent(stream, events, random.Random(f"{seed} {stream} sent"), start, speed)
    ]
    return sorted(records, key=lambda record: record.sent_s)


def _orders(chance: random.Random, seconds: float) -> tuple[list[_Event], list[_Event]]:
    orders: list[_Event] = []
    payments: list[_Event] = []
    at_s = 0.0
    while (at_s := at_s + chance.expovariate(2.0)) < seconds:
        order = f"o{len(orders)}"
        # Quarters, so that their sum does not depend on the order in which they are added up.
        amount = None if chance.random() < 0.03 else chance.randrange(4, 2_000) / 4
        country = None if chance.random() < 0.05 else chance.choice(("at", "cz", "pl", "se"))
        orders.append(_Event(at_s, {"order_id": order, "country": country, "amount": amount}))
        if chance.random() < 0.9:
            paid = None if chance.random() < 0.03 else amount
            method = chance.choice(("card", "invoice", None))
            payments.append(_Event(at_s + chance.uniform(1, 20), {"order_id": order, "method": method, "paid": paid}))
    return orders, payments


def _clicks(chance: random.Random, seconds: float) -> list[_Event]:
    clicks: list[_Event] = []
    at_s = 0.0
    while (at_s := at_s + chance.expovariate(5.0)) < seconds:
        if not QUIET_S[0] <= at_s < QUIET_S[1]:
            country = None if chance.random() < 0.05 else chance.choice(("at", "cz", "pl", "se"))
            clicks.append(_Event(at_s, {"user": f"u{chance.randrange(50)}", "country": country, "page": "/shop"}))
    return clicks


def _sent(
    stream: str, events: Iterable[_Event], chance: random.Random, start: datetime, speed: float
) -> Iterator[Record]:
    """The events as records: each on its way for a while, held back by the producer's pauses, and with what goes wrong."""

    def text(at_s: float, fields: dict[str, object], ahead_s: float = 0.0) -> str:
        moment = start + timedelta(seconds=at_s / speed + ahead_s)
        return json.dumps({"at": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"), **fields})

    is_ahead_due = stream == "orders"
    for number, event in enumerate(sorted(events, key=lambda event: event.at_s)):
        sent_s = event.at_s + chance.uniform(0.01, LONGEST_WAY_S)
        pause_end_s = _pause_end(stream, sent_s)
        if pause_end_s is not None:
            # In the order of time, as they were written down.
            sent_s = pause_end_s + (event.at_s - pause_end_s + PAUSE_S + LONGEST_WAY_S) / 1_000
        partition = chance.randrange(PARTITIONS)
        fields = dict(event.fields)
        if chance.random() < 0.1:
            fields |= {"coupon": {"code": f"c{number}", "tags": ["new", None]}, "source": "app"}
        value = text(event.at_s, fields)
        yield Record(stream, partition, sent_s / speed, value)
        if pause_end_s is not None:
            continue
        if chance.random() < 0.05:
            yield Record(stream, partition, (sent_s + chance.uniform(0.01, 0.2)) / speed, value, "duplicate")
        if chance.random() < 0.02:
            yield Record(stream, partition, (sent_s + 0.001) / speed, chance.choice(MALFORMED), "malformed")
        if chance.random() < 0.02 and event.at_s > LATE_S:
            late = text(event.at_s - LATE_S, {**event.fields, "order_id": f"late{number}"})
            yield Record(stream, partition, (sent_s + 0.002) / speed, late, "late")
        if is_ahead_due and event.at_s > 20:
            is_ahead_due = False
            ahead = text(event.at_s, {**event.fields, "order_id": "ahead"}, AHEAD_S)
            yield Record(stream, partition, (sent_s + 0.003) / speed, ahead, "ahead")


def _pause_end(stream: str, sent_s: float) -> float | None:
    """The end of the producer's pause in which something would be sent then."""
    first_s = PAUSES_AT_S.get(stream)
    if first_s is None or sent_s < first_s:
        return None
    begun_s = sent_s - (sent_s - first_s) % PAUSE_EVERY_S
    return begun_s + PAUSE_S if sent_s < begun_s + PAUSE_S else None


def write(folder: Path, records: Iterable[Record]) -> None:
    """STREAM.jsonl in a folder, one record a line, in the order in which they are sent."""
    folder.mkdir(parents=True, exist_ok=True)
    lines: dict[str, list[str]] = {stream: [] for stream in STREAMS}
    for record in records:
        lines[record.stream].append(f"{record.value}\n")
    for stream, values in lines.items():
        (folder / f"{stream}.jsonl").write_text("".join(values), encoding="utf-8")


def produce(bootstrap: str, records: Iterable[Record], start: datetime, prefix: str = "shop.") -> None:
    """Send the records to the topics PREFIX + STREAM that there are, when it is time; returns once Kafka has all of them."""
    from kafka import KafkaAdminClient, KafkaProducer

    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    topics = {stream: f"{prefix}{stream}" for stream in STREAMS if f"{prefix}{stream}" in admin.list_topics()}
    admin.close()
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", delivery_timeout_ms=600_000, max_block_ms=600_000)
    partitions = {stream: len(producer.partitions_for(topic)) for stream, topic in topics.items()}
    for record in records:
        if record.stream not in topics:
            continue
        wait_s = start.timestamp() + record.sent_s - time.time()
        if wait_s > 0:
            time.sleep(wait_s)
        partition = record.partition % partitions[record.stream]
        producer.send(topics[record.stream], record.value.encode(), partition=partition)
    producer.flush()
    producer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a shop's records.")
    parser.add_argument("folder", nargs="?", type=Path, help="where to write orders.jsonl, payments.jsonl and clicks.jsonl")
    parser.add_argument("--live", metavar="HOST:PORT", help="send them to this Kafka instead, to shop.orders and so on")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=300.0, help="of the shop's time")
    parser.add_argument("--speed", type=float, default=1.0, help="the shop's seconds in one second")
    options = parser.parse_args()
    if (options.folder is None) == (options.live is None):
        parser.error("give either a folder or --live HOST:PORT")
    start = datetime.now(UTC) if options.live else FIRST_DAY
    records = make(options.seed, options.seconds, start, options.speed)
    if options.live:
        produce(options.live, records, start)
    else:
        write(options.folder, records)
    kinds = [record.kind for record in records]
    print(", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)))


if __name__ == "__main__":
    main()
