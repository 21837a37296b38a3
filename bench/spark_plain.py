"""The benchmark's aggregate in plain Structured Streaming, for comparison in `boreal bench spark`.

It runs Spark's own operators and state store, on two cores, with Spark's code generation: rows come from Kafka as JSON records,
or from Parquet files, and each batch's windows go to Kafka. The first batches, which are slower, are left out.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import confluent_kafka
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from services.kafka.clusters import Cluster

BATCHES = 8
COLD = 4
JSON_BATCH = 300_000
PARQUET_BATCH = 2_000_000
KEYS = 1_000
ROW_US = 10
EPOCH_US = 1_700_000_000_000_000

_IN_BULK = {"linger.ms": 20, "batch.size": 1 << 20, "queue.buffering.max.messages": BATCHES * JSON_BATCH, "log_level": 0}


def rates(cluster: Cluster, bootstrap: str, root: Path) -> dict[str, float]:
    """Tuples per second, by source. No other Spark session may run in this process."""
    from pyspark.sql import SparkSession

    from services.hosting.fetch import java, spark_jars
    from services.kafka.topics import TopicSpec, ensure
    from spark_jobs.session import close_session

    ensure(cluster, [TopicSpec("plain", 2), TopicSpec("plain.counted", 1)])

    os.environ["JAVA_HOME"] = str(java().resolve().parents[1])
    settings: dict[str, bool | float | int | str | None] = {
        "spark.jars": ",".join(str(jar) for jar in sorted(spark_jars().glob("*.jar"))),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(root / "local"),
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.log.level": "FATAL",
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.session.timeZone": "UTC",
    }
    session = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    try:
        _make_records(bootstrap)
        _make_files(root / "rows")
        return {
            "Kafka, JSON": _rate(session, _records(session, bootstrap), bootstrap, root / "json"),
            "Parquet": _rate(session, _files(session, root / "rows"), bootstrap, root / "parquet"),
        }
    finally:
        close_session(session)


def _records(session: SparkSession, bootstrap: str) -> DataFrame:
    from pyspark.sql import functions as f

    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": "plain", "startingOffsets": "earliest"}
    stream = session.readStream.format("kafka").options(**options).option("maxOffsetsPerTrigger", JSON_BATCH).load()
    row = f.from_json(stream["value"].cast("string"), "time long, key long, value double").alias("row")
    return stream.select(row).select(f.timestamp_micros("row.time").alias("time"), "row.key", "row.value")


def _files(session: SparkSession, folder: Path) -> DataFrame:
    schema = "time timestamp, key long, value double"
    return session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def _rate(session: SparkSession, rows: DataFrame, bootstrap: str, root: Path) -> float:
    from pyspark.sql import functions as f

    windows = rows.withWatermark("time", "0 seconds").groupBy(f.window("time", "1 second"), "key")
    counted = windows.agg(f.count("*").alias("rows"), f.sum("value").alias("total"))
    writer = counted.select(f.to_json(f.struct("*")).alias("value")).writeStream.format("kafka").outputMode("append")
    options = {"kafka.bootstrap.servers": bootstrap, "topic": "plain.counted", "checkpointLocation": str(root)}
    query = writer.options(**options).trigger(availableNow=True).start()
    query.awaitTermination()
    warm = [batch for batch in query.recentProgress if batch.numInputRows][COLD:]
    return 1e3 * sum(batch.numInputRows for batch in warm) / sum(batch.batchDuration for batch in warm)


def _make_records(bootstrap: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, **_IN_BULK})
    for number in range(BATCHES * JSON_BATCH):
        value = b'{"time":%d,"key":%d,"value":%.3f}' % (EPOCH_US + ROW_US * number, number % KEYS, number * 0.5)
        producer.produce("plain", value)
    producer.flush()


def _make_files(folder: Path) -> None:
    folder.mkdir(parents=True)
    chance = np.random.default_rng(0)
    for number in range(BATCHES):
        times = EPOCH_US + ROW_US * (number * PARQUET_BATCH + np.arange(PARQUET_BATCH))
        columns = {
            "time": pa.array(times, pa.timestamp("us", "UTC")),
            "key": chance.integers(0, KEYS, PARQUET_BATCH),
            "value": chance.random(PARQUET_BATCH),
        }
        parquet.write_table(pa.table(columns), folder / f"{number:04}.parquet")
        os.utime(folder / f"{number:04}.parquet", (number, number))  # Spark takes the oldest first
