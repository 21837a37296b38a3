"""The data source: batch and stream, over a view of a query's results.

A batch is what is there when it is planned. A stream's offset is a place in the topic, which Spark keeps in its checkpoint; the
records between two places never change, so a batch that Spark runs again has the same rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from boreal.model.errors import UserError
from boreal.spark.columns import FACTS, batches_of, check_schema, latest_of, schema_of
from boreal.spark.ranges import ResultTopic, TopicPlace, TopicReader, reading

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

SAMPLE = 1_000
"""How many rows tell the schema, where the reader names none."""
MAX_ROWS = 100_000
"""The most records of a micro-batch, where the reader names no other number."""
_KAFKA = "kafka."


def register(spark: SparkSession) -> None:
    """Make `format("boreal")` known to this session."""
    spark.dataSource.register(BorealSource)


class BorealSource(DataSource):
    """`format("boreal")`. Options:

    query, bootstrap: the query, and the address of Kafka; of several sites, of the one to read.
    view: stable (the default), latest or changes.
    site: the site's name, if there are several. Stable rows are read at the home site, and need none.
    max_rows: the most records of a micro-batch.
    kafka.NAME: an option of kafka-python's consumer, as `kafka.security_protocol`.
    """

    @classmethod
    def name(cls) -> str:
        return "boreal"

    def schema(self) -> StructType:
        """By the first rows that are kept. UserError if there is none yet."""
        view, topic = self._view(), self._topic("out")
        if view == "stable":
            topic = self._topic("stable")
        with reading(topic) as reader:
            records = reader.between(reader.first(), reader.end())
            rows = list(islice(filter(None, (_row(record) for record in records)), SAMPLE))
        if not rows:
            fix = 'name the columns: .schema("window_start timestamp, n bigint")'
            raise UserError("schema", None, f"cannot be told: {topic.name} has no row yet", fix)
        return schema_of(view, rows)

    def reader(self, schema: StructType) -> DataSourceReader:
        check_schema(self._view(), schema)
        topic = self._topic("stable" if self._view() == "stable" else "out")
        return BatchReader(topic, self._view(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        check_schema(self._view(), schema)
        suffix = {"stable": "stable", "latest": "latest", "changes": "out"}[self._view()]
        return BorealStreamReader(self._topic(suffix), self._view(), schema, self._max_rows())

    def _view(self) -> str:
        view = self.options.get("view", "stable")
        if view not in FACTS:
            raise UserError("view", view, "is not a view", f"choose one of {', '.join(FACTS)}")
        return str(view)

    def _max_rows(self) -> int:
        text = self.options.get("max_rows", str(MAX_ROWS))
        if not text.isdecimal() or int(text) < 1:
            raise UserError("max_rows", text, "is not a number of rows", "write a whole number above 0")
        return int(text)

    def _topic(self, suffix: str) -> ResultTopic:
        for name in ("query", "bootstrap"):
            if not self.options.get(name):
                raise UserError(name, None, "is missing", f".option('{name}', ...)")
        query, site = self.options["query"], self.options.get("site")
        kafka = {name.removeprefix(_KAFKA): _plain(text) for name, text in self.options.items() if name.startswith(_KAFKA)}
        name = f"{query}.{suffix}" if suffix != "out" or not site else f"{query}.out.{site}"
        return ResultTopic(name, query, {"bootstrap_servers": self.options["bootstrap"], **kafka})


class Range(InputPartition):
    """The records between a place and an offset."""

    def __init__(self, start: TopicPlace, end: int) -> None:
        super().__init__(None)
        self.start = start
        self.end = end


class BatchReader(DataSourceReader):
    """What is there when Spark plans the read."""

    def __init__(self, topic: ResultTopic, view: str, schema: StructType) -> None:
        self._topic = topic
        self._view = view
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        with reading(self._topic) as reader:
            return [Range(reader.first(), reader.end())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        with reading(self._topic) as reader:
            records = reader.between(partition.start, partition.end)
            if self._view == "latest":
                records = iter(latest_of(records))
            yield from batches_of(self._view, self._schema, records, is_row=self._view == "stable")


class BorealStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """All that is kept, and then what comes. An offset is a TopicPlace, as an object."""

    def __init__(self, topic: ResultTopic, view: str, schema: StructType, max_rows: int) -> None:
        self._topic = topic
        self._view = view
        self._schema = schema
        self._max_rows = max_rows
        self._connection: TopicReader | None = None
        self._until: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For executors, which have connections of their own."""
        return {**self.__dict__, "_connection": None}

    def initialOffset(self) -> dict[str, Any]:
        return asdict(self._reader().first())

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self._reader().end()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        reader, place = self._reader(), TopicPlace(**start)
        end = reader.end() if self._until is None else self._until
        if self._until is None and end <= place.offset:
            reader.wait(place)
            end = reader.end()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else float("inf")
        return asdict(reader.look_ahead(place, end, most))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [Range(TopicPlace(**start), end["offset"])] if start["offset"] < end["offset"] else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        with reading(self._topic) as reader:
            records = reader.between(partition.start, partition.end)
            yield from batches_of(self._view, self._schema, records, is_row=self._view != "changes")

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _reader(self) -> TopicReader:
        if self._connection is None:
            self._connection = TopicReader(self._topic)
        return self._connection


def _row(record: Any) -> dict[str, Any] | None:
    """The row of a record of q.stable or q.out; None if it has none."""
    value: dict[str, Any] = json.loads(record.value)
    return value if record.topic.endswith(".stable") else value.get("data")


def _plain(text: str) -> str | int | bool:
    """An option of Spark, which is always text, as kafka-python wants it."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if text.isdecimal() else text
