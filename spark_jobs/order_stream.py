"""One streaming query from topics with orders, through functions of Spark's Python worker, to topics with answers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

from boreal.model.errors import BorealError
from spark_jobs.session import is_on_one_core

BATCH_EVERY = "200 milliseconds"
"""The shortest time between the starts of batches. A batch costs the JVM some 60 ms of a core even with one row: without this,
a job with few rows took a whole core."""

BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class JobFailed(BorealError):
    """The operators cannot go on. The message begins with the Python traceback, if Python failed."""


@dataclass(frozen=True)
class OrderPath:
    """Where orders come from, what becomes of them, and where the answers go."""

    source: Mapping[str, str]
    """Options of Spark's connector to read orders (`connector.source_options`)."""
    columns: tuple[str, ...]
    """The columns of records that `act` takes."""
    act: BatchFunction
    """Runs in the Python worker, for the records of one batch."""
    schema: str
    """The rows that `act` returns."""
    sink: Mapping[str, str]
    """Options to write the answers."""


class OrderStream:
    """The streaming query. Its position is in a checkpoint, which is written asynchronously: a restart repeats some answers."""

    def __init__(self, session: SparkSession, name: str, path: OrderPath, checkpoint: Path, every: str) -> None:
        """Start it. name: for Spark's logs; every: the shortest time between batches."""
        orders = session.readStream.format("kafka").options(**path.source).load().select(*path.columns)
        if is_on_one_core(session):
            # Tasks run one after the other there, with some ms of overhead each: one task for all partitions is faster.
            orders = orders.coalesce(1)
        answers = orders.mapInArrow(path.act, path.schema)
        writer = answers.writeStream.format("kafka").options(**path.sink)
        # The position is written asynchronously, once a second: no batch waits for the disk.
        writer = writer.option("checkpointLocation", str(checkpoint)).option("asyncProgressTrackingEnabled", "true")
        self._query = writer.queryName(name).trigger(processingTime=every).start()
        self.progress: StreamingQueryProgress | None = None
        """Of the last batch; None before the first."""
        self.ends: dict[str, dict[int, int]] = {}
        """For each topic and partition: the offset after the last order of that batch."""
        self.rested_since = time.monotonic()
        """When the last batch was first seen."""

    def look(self) -> None:
        """Read the progress. JobFailed if the query has ended."""
        failure = self._query.exception()
        if failure is not None:
            raise JobFailed(_failure_text(str(failure)))
        found = self._query.lastProgress
        if found is None:
            return
        if self.progress is None or found.batchId != self.progress.batchId:
            self.rested_since = time.monotonic()
        self.progress = found
        ends = json.loads(found.sources[0].endOffset) or {}
        self.ends = {topic: {int(p): end for p, end in by_partition.items()} for topic, by_partition in ends.items()}

    def has_passed(self, topic: str, offsets: Mapping[int, int]) -> bool:
        """Whether the orders at these offsets, by partition, have been executed, as far as `look` has seen."""
        ends = self.ends.get(topic, {})
        return all(ends.get(partition, 0) > offset for partition, offset in offsets.items())

    def stop(self) -> None:
        self._query.stop()


def _failure_text(failure: str) -> str:
    """The text of an exception of Spark without the plan, and without Java's frames if there is a Python traceback."""
    message, _, rest = failure.partition("\n=== Streaming Query ===")
    _, _, frames = rest.partition("\nJVM stacktrace:\n")
    return message if "Traceback (most recent call last)" in message else f"{message}\n{frames}"
