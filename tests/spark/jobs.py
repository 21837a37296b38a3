"""What the tests of Spark jobs share: random orders with the answers that a host beside us gives, and a job as a process."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
from kafka import TopicPartition

from boreal.model.schema import TIME
from boreal.query.plan import Fragment
from boreal.query.spec import Mode, Query, load_query
from deployment.layout import Layout, make_layout
from deployment.operator_hosts import answers_topic, orders_topic
from deployment.query_record import QueryRecord
from reconcile.orders import Begin, Copy, DropLive, EndRedo, Order, Place, RollBack, SetMark, decode_answer, encode_order
from reconcile.parts import Parts, in_parts
from reconcile.remote import RemoteHost
from services.kafka.clusters import Cluster
from services.kafka.queries import QueryRegistry
from services.kafka.settings import ServiceSettings
from services.kafka.topics import TopicSpec, ensure, system_topics
from sunion.steps import Step
from tests.harness import query_of
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
WIDE = {"max.message.bytes": str(64 << 20)}
SECOND_US = 1_000_000
READY_S = 180.0
SOON_S = 60.0
READY = "warm after"


def query_named(name: str, shards: int) -> Query:
    operators = {
        "all": {"union": ["a", "b"]},
        "some": {"filter": "all", "where": "v > 0.2"},
        "per_key": {
            "aggregate": "some",
            "window": {"tumbling": "1s"},
            "by": ["k"],
            "compute": {"rows": "count(*)", "total": "sum(v)", "mean": "avg(v)"},
        },
    }
    options: dict[str, Any] = {"replicas": 1, "engine": "spark", "shards": shards}
    return load_query({**query_of(operators, "per_key", ("a", "b"), **options), "name": name})


class Script:
    """Orders of one instance as a node could give them, life after life, and the answers that a `RemoteHost` here gives."""

    def __init__(self, fragment: Fragment, seed: int) -> None:
        self.orders: list[bytes] = []
        self.answers: list[bytes] = []
        self.copies: dict[int, bytes] = {}
        self._fragment = fragment
        self._random = random.Random(seed)
        self._host = RemoteHost(fragment, lambda owner, number: self.copies[number])
        self._life = self._number = self._copies = self._upto = self._live = self._back = 0
        self._mode = Mode.CHECKPOINT_REDO
        self._phase = "stable"

    @property
    def rows(self) -> int:
        """How many rows its steps have brought."""
        return self._host.rows

    def begin(self, mode: Mode, checkpoint: tuple[str, int] | None = None) -> None:
        self._life, self._number, self._mode, self._phase = self._life + 1, 0, mode, "stable"
        self.give(Begin(self._life, mode, checkpoint, None))

    def give(self, order: Order) -> None:
        self._number += 1
        place = Place(self._life, self._number)
        data = encode_order(place, order)
        answer = self._host.take(data, self.copies.__setitem__)
        assert answer is not None
        self.orders += in_parts(place, data)
        self.answers.append(answer)

    def go_on(self, count: int, rows: int = 50) -> None:
        """So many orders more, of any kind that may come next."""
        for _ in range(count):
            self._any(rows)

    def copy(self) -> int:
        """A Copy for the store; the number that it has there."""
        self._copies += 1
        self.give(Copy(self._copies))
        return self._copies

    def step(self, rows: int, tentative: bool = False) -> None:
        first = self._live if tentative else self._upto
        upto = first + self._random.randrange(1, 2 * SECOND_US)
        batches = {entry.name: self._rows(entry.schema.arrow, rows, first, upto) for entry in self._fragment.inputs}
        self.give(Step(batches, upto, tentative, False, ()))
        if tentative:
            self._live = upto
        else:
            self._upto = upto

    def many_groups(self, count: int) -> None:
        """A step of two rows for each of so many keys, in one window, whose answer has a row for each."""
        begin = (self._upto // SECOND_US + 1) * SECOND_US
        rows = np.arange(2 * count)
        columns = {TIME: begin + rows * SECOND_US // (2 * count), "k": rows % count, "v": np.ones(2 * count)}
        [entry] = self._fragment.inputs
        schema = entry.schema.arrow
        arrays = [pa.array(columns[column.name]).cast(column.type) for column in schema]
        self._upto = begin + SECOND_US
        self.give(Step({entry.name: pa.RecordBatch.from_arrays(arrays, schema=schema)}, self._upto, False, False, ()))

    def _any(self, rows: int) -> None:
        rows, chance = self._random.randrange(rows), self._random.random()
        match self._phase:
            case "stable" if chance < 0.1:
                self.copy()
            case "stable" if chance < 0.2:
                self._live = self._back = self._upto
                self._copies += self._mode is Mode.CHECKPOINT_REDO
                self.give(SetMark(self._copies if self._mode is Mode.CHECKPOINT_REDO else None))
                self._phase = "tentative"
            case "tentative" if chance < 0.3:
                keeps_live = self._mode is Mode.OVERLAY_REDO and self._random.random() < 0.5
                self.give(RollBack(keeps_live))
                self._upto = self._back
                self._phase = "both" if keeps_live else "redo"
            case "both" if chance < 0.2:
                self.give(DropLive())
                self._phase = "redo"
            case "redo" | "both" if chance < 0.4:
                self.give(EndRedo())
                self._phase = "stable"
            case "tentative":
                self.step(rows, tentative=True)
            case "both":
                self.step(rows, tentative=self._random.random() < 0.5)
            case _:
                self.step(rows)

    def _rows(self, schema: pa.Schema, rows: int, first: int, upto: int) -> pa.RecordBatch:
        chance = np.random.default_rng(self._random.getrandbits(32))
        times = np.sort(chance.integers(first, upto, rows))
        columns = [times if column.name == TIME else _values(column.type, rows, chance) for column in schema]
        return pa.RecordBatch.from_arrays(
            [pa.array(column).cast(wanted.type) for column, wanted in zip(columns, schema, strict=True)], schema=schema
        )


def _values(kind: pa.DataType, rows: int, chance: np.random.Generator) -> pa.Array:
    """Some of them null, and few enough different ones to meet in groups."""
    numbers = chance.integers(0, 9, rows)
    values: np.ndarray = numbers
    if pa.types.is_floating(kind):
        values = numbers * chance.random(rows) * 9
    elif pa.types.is_decimal(kind):
        values = np.array([Decimal(number - 3).scaleb(-kind.scale) for number in numbers.tolist()], object)
    elif pa.types.is_date32(kind):
        values = numbers.astype(np.int32)
    elif pa.types.is_string(kind):
        values = np.char.add("k", numbers.astype(str))
    return pa.array(values, mask=chance.random(rows) < 0.1)


@dataclass
class Heard:
    """The answers of one partition: each as it first came, in that order; how many came again, and which were others then."""

    answers: dict[Place, bytes] = field(default_factory=dict)
    repeated: int = 0
    differing: list[Place] = field(default_factory=list)
    parts: Parts = field(default_factory=Parts)


class SparkJob:
    """One replica's job, as a supervisor has it, and a node's two topics. As a context: ended at the end."""

    def __init__(self, settings: ServiceSettings, query: Query, directory: Path, environment: dict[str, str]) -> None:
        self.settings = settings
        self.query = query
        self.layout: Layout = make_layout(query, settings.site_names)
        self.instances = self.layout.remote_instances("r0")
        self.fragments = [self.layout.plan.fragment(who.fragment) for who in self.instances]
        name = query.name
        self.cluster = Cluster(settings.home, settings, "test")
        self.directory = directory
        self.log = directory / "job.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.heard = [Heard() for _ in self.instances]
        self.orders, self.answers = orders_topic(name, "r0"), answers_topic(name, "r0")
        self._environment = {**os.environ, **environment, "BOREAL_DATA": str(directory)}
        paths = [str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
        self._environment["PYTHONPATH"] = os.pathsep.join(paths)
        self._given = [0] * len(self.instances)
        self._stopping = threading.Event()
        ensure(self.cluster, system_topics())
        ensure(self.cluster, [TopicSpec(topic, len(self.instances), WIDE) for topic in (self.orders, self.answers)])
        QueryRegistry(self.cluster).put(QueryRecord(name, self.query.dump(), 1))
        self._producer = self.cluster.make_producer()
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def __enter__(self) -> SparkJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._stopping.set()
        self._listener.join()
        self._producer.close(timeout=1)

    # The process

    def spawn(self, *command: str | Path) -> None:
        """Start it, by `python -m spark_jobs` or by another command, and return at once."""
        command = command or (sys.executable, "-m", "spark_jobs")
        self._was_ready = self.said.count(READY)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, self.query.name, "r0"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment,
                cwd=self.directory, start_new_session=True,
            )

    def wait_ready(self) -> None:
        """Until it says in its log that it is warm; it is expected to live on."""
        wait_until(lambda: self.is_ready or self.ended, "the job is ready", READY_S, lambda: self.said)
        assert not self.ended, self.said

    @property
    def is_ready(self) -> bool:
        return self.said.count(READY) > self._was_ready

    @property
    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    @property
    def ended(self) -> bool:
        assert self.process is not None
        return self.process.poll() is not None

    def stop(self) -> None:
        if self.process is not None and not self.ended:
            family = self.family()
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
            wait_until(lambda: not any(is_alive(process) for process in family), "all of the job has ended")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def family(self) -> list[psutil.Process]:
        return family_of(self.pid)

    def workers(self) -> list[psutil.Process]:
        return workers_of(self.pid)

    # What a node does

    def give(self, scripts: Sequence[Script]) -> None:
        """All that the scripts, one for each partition, hold and that was not given yet, partitions in turn."""
        for place in range(max(len(script.orders) for script in scripts)):
            for partition, script in enumerate(scripts):
                if self._given[partition] <= place < len(script.orders):
                    self._producer.send(self.orders, script.orders[place], partition=partition)
        self._given = [len(script.orders) for script in scripts]
        self._producer.flush()

    def put(self, partition: int, value: bytes) -> None:
        """Something that is no order."""
        self._producer.send(self.orders, value, partition=partition)

    def end_of(self, partition: int) -> int:
        """The offset after the last record of a partition of the orders."""
        consumer = self.cluster.make_consumer()
        try:
            there = TopicPartition(self.orders, partition)
            return int(consumer.end_offsets([there])[there])
        finally:
            consumer.close(autocommit=False)

    def check(self, scripts: Sequence[Script], within_s: float = SOON_S) -> None:
        """Once all are answered: each in its order, by the bytes that a host beside us answers."""

        def counts() -> list[int]:
            return [len(heard.answers) for heard in self.heard]

        expected = [len(script.answers) for script in scripts]
        wait_until(lambda: counts() == expected, f"{expected} answers", within_s, lambda: f"{counts()}\n{self.said[-5000:]}")
        for heard, script in zip(self.heard, scripts, strict=True):
            assert list(heard.answers.values()) == script.answers
            assert not heard.differing

    def _listen(self) -> None:
        consumer = self.cluster.make_consumer(fetch_max_wait_ms=50)
        consumer.assign([TopicPartition(self.answers, partition) for partition in range(len(self.heard))])
        consumer.seek_to_beginning()
        schemas = [{edge.operator: edge.schema for edge in fragment.outputs} for fragment in self.fragments]
        while not self._stopping.is_set():
            for records in consumer.poll(timeout_ms=100).values():
                for record in records:
                    heard = self.heard[record.partition]
                    whole = heard.parts.take(record.value)
                    if whole is None:
                        continue
                    place, _ = decode_answer(whole, schemas[record.partition])
                    heard.repeated += place in heard.answers
                    if heard.answers.setdefault(place, whole) != whole:
                        heard.differing.append(place)
        consumer.close(autocommit=False)


def family_of(job: int) -> list[psutil.Process]:
    """A job's process, its JVM, and the Python workers."""
    own = psutil.Process(job)
    return [own, *own.children(recursive=True)]


def jvm_of(job: int) -> psutil.Process:
    [found] = [process for process in family_of(job) if process.name() == "java"]
    return found


def workers_of(job: int) -> list[psutil.Process]:
    """Those that have operator hosts: what the daemon of Spark's has forked."""
    [daemon] = [child for child in jvm_of(job).children() if is_alive(child) and "pyspark.daemon" in child.cmdline()]
    return daemon.children()


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def environment_of(settings: ServiceSettings, **more: Any) -> dict[str, str]:
    """The BOREAL_ variables that say the same as plain settings."""
    site = settings.sites[settings.home]
    found = {"BOREAL_SITES__A__BOOTSTRAP": site.bootstrap, "BOREAL_REDIS__URL": settings.redis.url}
    return {**found, **{name: value if isinstance(value, str) else json.dumps(value) for name, value in more.items()}}
