"""Recomputes results in one Spark batch job over the logs of a query's sources (spark_jobs.batch_worker).

    sources' logs in Kafka ──> cut ──> compute, a task for each shard of a fragment ──> ... ──> compute, the egress ──> rows

Rows that a running query logs between two fragments are here shuffled by Spark between two stages, by the shard that reads
them. The last stage has one task, which restores the order in which clients were given the results.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial, reduce

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from boreal.model import codec
from boreal.model.errors import BorealError
from boreal.model.frames import Boundary, Data, LogId
from boreal.query.plan import Edge, Fragment
from boreal.query.spec import Query
from deployment.layout import Layout
from deployment.recompute import covering, within
from services.egress.history import ResultRange, SourceExtent
from services.kafka.settings import ServiceSettings
from spark_jobs.batch_worker import FRAMES, ORDER, RECORDS, BatchTask, compute, cut
from spark_jobs.connector import batch_options
from sunion.tape import BEGINNING


class BatchFailed(BorealError):
    """The job has ended without its results. The message holds the Python traceback, if Python failed."""


def recompute(
    session: SparkSession, settings: ServiceSettings, query: Query, layout: Layout, held: SourceExtent, wanted: ResultRange
) -> Iterator[pa.RecordBatch]:
    """The stable results of a range, in order, as batches of the output's schema. wanted: a range that
    `services.egress.history.resolve_range` returned. BatchFailed if the job fails."""
    plan = layout.plan
    until = covering(wanted.until, plan.bucket_us)
    sources = tuple((edge.operator, layout.sources_of(edge.operator)) for edge in plan.sources)
    task = BatchTask(json.dumps(query.dump()), layout.sites, wanted.since, until, sources)
    job = _BatchJob(session, settings, layout, held, task)
    made: dict[str, DataFrame] = {}
    for fragment in plan.fragments:
        output = job.compute(fragment, made)
        if sum(edge in reader.edges for edge in fragment.outputs for reader in plan.fragments) > 1:
            output = output.persist()
        made |= {edge.name: output for edge in fragment.outputs}
    reached = BEGINNING
    try:
        for row in made[plan.output.name].select("value").toLocalIterator():
            frame = codec.decode(bytes(row.value))
            if isinstance(frame, Boundary):
                reached = frame.time
            elif isinstance(frame, Data):
                yield within(frame.batch, wanted.since, wanted.until)
    except (Py4JError, PySparkException) as error:
        raise BatchFailed(_failure_text(str(error))) from None
    assert reached >= task.until, f"the results reach to {reached}, and not to {task.until}"


class _BatchJob:
    """Builds the data frames of one job."""

    def __init__(
        self, session: SparkSession, settings: ServiceSettings, layout: Layout, held: SourceExtent, task: BatchTask
    ) -> None:
        self._session = session
        self._sites = settings.sites
        self._layout = layout
        self._held = held
        self._task = task

    def compute(self, fragment: Fragment, made: Mapping[str, DataFrame]) -> DataFrame:
        """The output of a fragment. made: the outputs of the fragments before it, by edge."""
        sources = [edge for edge in fragment.edges if edge.source]
        read = [made[edge.name].where(sf.col("stream") == edge.name) for edge in fragment.edges if not edge.source]
        if sources:
            read.append(self._cut(sources))
        frames = reduce(DataFrame.unionByName, read)
        by_shard = frames.repartitionById(fragment.shards, sf.col("partition") % fragment.shards)
        return by_shard.sortWithinPartitions(*ORDER).mapInArrow(partial(compute, self._task, fragment.name), FRAMES)

    def _cut(self, edges: list[Edge]) -> DataFrame:
        by_site: dict[str, dict[str, Mapping[int, tuple[int, int]]]] = {}
        for log in (LogId(edge.name, "", 0) for edge in edges):
            topic = self._layout.topic_of(log)
            by_site.setdefault(self._layout.site_of(log), {})[topic] = self._held.offsets[topic]
        logs = [
            self._session.read.format("kafka").options(**batch_options(self._sites[site], offsets)).load().select(*RECORDS)
            for site, offsets in by_site.items()
        ]
        return reduce(DataFrame.unionByName, logs).mapInArrow(partial(cut, self._task), FRAMES)


def _failure_text(failure: str) -> str:
    """The text of an exception of Spark: the Python traceback if Python failed, else the message without the JVM's frames."""
    begin = failure.rfind("Traceback (most recent call last)")
    if begin < 0:
        return failure.partition("\n\tat ")[0]
    return failure[begin:].partition("\n\n")[0].partition("\n\tat ")[0]
