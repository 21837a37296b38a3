"""`boreal tail`: the results of a query as they arrive. Revoked results are repeated with a line through them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from kafka import TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import OffsetOutOfRangeError
from rich.console import Console
from rich.text import Text

from services.kafka.clusters import Cluster

SHOWN_FIRST = 10
"""The number of earlier records that are shown first."""

Record = dict[str, Any]


def stable_rows(cluster: Cluster, topic: str) -> Iterator[Record]:
    """The last few rows of q.stable, then all new ones, without end."""
    for record, _ in _follow(cluster, topic, read_committed=True):
        yield json.loads(record.value)


def changes(cluster: Cluster, topic: str, with_control: bool) -> Iterator[Record]:
    """The last few records of q.out, then all new ones, without end. with_control: also boundaries and ends of corrections."""
    newest = (0, 0)
    for record, recreations in _follow(cluster, topic, read_committed=False):
        # Records of an earlier incarnation of the writer are void once a later one has begun (R25).
        incarnation = recreations, int(dict(record.headers)["incarnation"])
        if incarnation < newest:
            continue
        newest = incarnation
        fields = json.loads(record.value)
        if with_control or fields["type"] in ("stable", "tentative", "undo"):
            yield fields


def _follow(cluster: Cluster, topic: str, *, read_committed: bool) -> Iterator[tuple[ConsumerRecord, int]]:
    """The records, each with the number of times that the topic was created again before it."""
    partition = TopicPartition(topic, 0)
    recreations = 0
    with closing(cluster.make_consumer(read_committed=read_committed)) as consumer:
        consumer.assign([partition])
        first, end = consumer.beginning_offsets([partition])[partition], consumer.end_offsets([partition])[partition]
        consumer.seek(partition, max(first, end - SHOWN_FIRST))
        while True:
            try:
                yield from ((record, recreations) for record in consumer.poll(timeout_ms=200).get(partition, ()))
            except OffsetOutOfRangeError:
                # The next record was deleted by age, or together with the whole topic.
                recreations += consumer.position(partition) > consumer.end_offsets([partition])[partition]
                consumer.seek_to_beginning(partition)


class TailPrinter:
    """Prints changes as coloured lines."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._outstanding: list[tuple[int, str]] = []

    def show_stable(self, row: Record) -> None:
        self._print("stable", json.dumps(row), "green")

    def show(self, record: Record) -> None:
        match record["type"]:
            case "stable":
                self.show_stable(record["data"])
            case "tentative":
                text = json.dumps(record["data"])
                self._outstanding.append((record["seq"], text))
                missing = ", ".join(record.get("missing_inputs") or ())
                self._print("tentative", text + (f"  without {missing}" if missing else ""), "yellow")
            case "undo":
                revoked = [text for seq, text in self._outstanding if seq > record["after_seq"]]
                self._outstanding = []
                for text in revoked:
                    self._print("undone", text, "red strike")
            case "boundary":
                kind = "tentative" if record["tentative"] else "stable"
                self._print("boundary", f"{kind}: no later result has a time before {record['through']}", "dim")
            case "rec_done":
                self._print("rec_done", "the correction is complete", "cyan")

    def _print(self, kind: str, text: str, style: str) -> None:
        self._console.print(Text(f"{kind:<9} ") + Text(text, style=style))
