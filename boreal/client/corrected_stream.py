"""`CorrectedStream`: a query's answers, whatever breaks between here and there."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, overload

from boreal.client.changes import Change, Missing, MissingRows, Stable
from boreal.client.corrector import Corrector, Delivery, LogPosition
from boreal.client.site_readers import SiteReaders
from boreal.client.view import View
from boreal.model.errors import UserError

T = TypeVar("T")
U = TypeVar("U")

Place = dict[str, Any]
"""Where a reader stands, as JSON can hold it: {"v": 1, "id": the next stable row, "topics": {TOPIC: POSITION}}, where POSITION is
{"offset": N, "next_id": N, "topic_id": TEXT}."""

VERSION = 1
HOME = ""
"""The one site, where its name is not delivery."""

_WAIT_S = 0.1


class CorrectedStream(Generic[T]):
    """The output of the query `query`.

    bootstrap: one Kafka's address; or, where the deployment has several sites, those of all, by their names: then the stream
    goes on as long as any of them is reached. model: a pydantic model (or dataclass, or TypedDict) of a row; without it
    rows are dicts. place: where to go on, as `place()` gave it; group: where `commit(group)` has left off, unless a place
    is delivery. silence_s: how long the site that is read may be silent, while another one speaks, before that one is read.
    options: for kafka-python's consumer, such as security_protocol, ssl_cafile, sasl_mechanism, sasl_plain_username.

    Iterate over one of `stable()`, `changes()` and `latest()` at a time; none ends before `close()`. A row counts as taken
    when the next one is asked for or `place()` is called after it. What the model raises of a row is raised once all rows
    before it are given, and again with each new iteration: the place stays before that row.
    """

    @overload
    def __init__(
        self: CorrectedStream[dict[str, Any]],
        query: str,
        bootstrap: str | Mapping[str, str],
        *,
        model: None = None,
        place: Place | None = None,
        group: str | None = None,
        silence_s: float = 1.0,
        **options: Any,
    ) -> None: ...

    @overload
    def __init__(
        self,
        query: str,
        bootstrap: str | Mapping[str, str],
        *,
        model: type[T],
        place: Place | None = None,
        group: str | None = None,
        silence_s: float = 1.0,
        **options: Any,
    ) -> None: ...

    def __init__(
        self,
        query: str,
        bootstrap: str | Mapping[str, str],
        *,
        model: type[T] | None = None,
        place: Place | None = None,
        group: str | None = None,
        silence_s: float = 1.0,
        **options: Any,
    ) -> None:
        self._query = query
        self._bootstrap = {HOME: bootstrap} if isinstance(bootstrap, str) else dict(bootstrap)
        self._options = options
        self._silence_s = silence_s
        self._make_row: Callable[[dict[str, Any]], T] = _make_row_factory(model)
        self._next_id: int | None = None
        self._positions: dict[str, LogPosition] = {}
        self._feeds: SiteReaders | None = None
        self._is_closed = False
        if place is None and group is not None:
            place = self._committed(group)
        if place is not None:
            self._go_to(place)

    # What to read

    def stable(self) -> Iterator[T]:
        """Every final row, complete, in order, none twice. MissingRows where some are kept no longer."""
        for delivery in self._deliveries(stable_only=True):
            if isinstance(delivery.change, Missing):
                raise MissingRows(delivery.change.first_id, delivery.change.last_id)
            if isinstance(delivery.change, Stable):
                yield delivery.change.data

    def changes(self) -> Iterator[Change[T]]:
        """All that happens: rows as soon as there are any, what is taken back, and how far the stream has come."""
        for delivery in self._deliveries(stable_only=False):
            yield delivery.change

    def latest(self) -> Iterator[View[T]]:
        """The view after each change of it, always the same object: the newest row of every key, final or not."""
        view: View[T] = View()
        for delivery in self._deliveries(stable_only=False):
            if view.take(delivery.change):
                yield view

    def astable(self) -> AsyncIterator[T]:
        """`stable()` for `async for`; likewise the others. Cancelled, it has not taken a row that it did not give."""
        return self._in_threads(self.stable)

    def achanges(self) -> AsyncIterator[Change[T]]:
        return self._in_threads(self.changes)

    def alatest(self) -> AsyncIterator[View[T]]:
        return self._in_threads(self.latest)

    # Where we are

    def place(self) -> Place:
        """Where another stream goes on after what this one has given: at the next stable row. Tentative rows since the
        last stable one are given again."""
        topics = {topic: asdict(position) for topic, position in self._positions.items()}
        return {"v": VERSION, "id": self._next_id, "topics": topics}

    def commit(self, group: str) -> None:
        """Keep the place in Kafka, as the committed offset of this consumer group (which nobody else may be a member of),
        at every site that can be reached. KafkaError where none can. Kafka forgets it a week after the last commit, or as its
        `offsets.retention.minutes` says."""
        from kafka import OffsetAndMetadata, TopicPartition

        text = json.dumps(self.place(), separators=(",", ":"))
        self._at_sites(
            group,
            lambda consumer, topic: consumer.commit(
                {TopicPartition(topic, 0): OffsetAndMetadata(self._position(topic).offset, text, -1)}
            ),
        )

    def close(self) -> None:
        """End the iteration, from any thread."""
        self._is_closed = True
        if self._feeds is not None:
            self._feeds.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # Reading

    def _deliveries(self, stable_only: bool) -> Iterator[Delivery[T]]:
        topics = self._topics(stable_only)
        positions = {site: self._position(topic) for site, topic in topics.items()}
        with self._reading(topics, positions) as feeds:
            corrector = Corrector(positions, self._make_row, 0.0, self._next_id, stable_only, self._silence_s)
            # Time in which nobody reads is nobody's silence.
            now, looked_at = 0.0, time.monotonic()
            while not feeds.is_closed:
                batches = feeds.take(_WAIT_S)
                now += min(time.monotonic() - looked_at, _WAIT_S)
                looked_at = time.monotonic()
                # What other sites have given is counted once the rows of this round are taken.
                self._positions |= {topics[site]: position for site, position in corrector.positions().items()}
                for delivery in corrector.take(batches, now):
                    self._next_id = delivery.next_id
                    self._positions[topics[delivery.site]] = delivery.position
                    yield delivery
                if corrector.failure is not None:
                    raise corrector.failure

    @contextmanager
    def _reading(self, topics: dict[str, str], positions: dict[str, LogPosition]) -> Iterator[SiteReaders]:
        if self._feeds is not None:
            raise UserError("iteration", None, "another one of this stream is under way", "make a second CorrectedStream")
        self._feeds = feeds = SiteReaders()
        feeds.is_closed = self._is_closed
        for site, topic in topics.items():
            options = {
                "isolation_level": "read_committed" if topic.endswith(".stable") else "read_uncommitted",
                "max_poll_records": 2_000,
            }
            feeds.add(site, topic, positions[site], {**self._consumer_options(site), **options})
        try:
            yield feeds
        finally:
            feeds.close()
            self._feeds = None

    def _topics(self, stable_only: bool) -> dict[str, str]:
        """By site. The stable rows of one site come from q.stable, which is the smaller."""
        if len(self._bootstrap) > 1:
            return {site: f"{self._query}.out.{site}" for site in self._bootstrap}
        site = next(iter(self._bootstrap))
        return {site: f"{self._query}.stable" if stable_only else f"{self._query}.out"}

    def _consumer_options(self, site: str) -> dict[str, Any]:
        return {
            "bootstrap_servers": self._bootstrap[site],
            "group_id": None,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "reconnect_backoff_max_ms": 200,
            "request_timeout_ms": 3_000,
            "bootstrap_timeout_ms": 5_000,
            "fetch_max_wait_ms": 100,
            "metrics_enabled": False,
            "allow_auto_create_topics": False,
            **self._options,
        }

    async def _in_threads(self, iterate: Callable[[], Iterator[U]]) -> AsyncIterator[U]:
        """A blocking iteration whose steps are waited for in a thread of its own: the event loop has few, all of which a few
        quiet streams would take for good."""
        iterator, end = iterate(), object()
        thread = ThreadPoolExecutor(1, "boreal-steps")
        in_thread = asyncio.get_running_loop().run_in_executor
        try:
            while True:
                next_id, positions = self._next_id, dict(self._positions)
                step = in_thread(thread, next, iterator, end)
                try:
                    item = await asyncio.shield(step)
                except asyncio.CancelledError:
                    await self._end(step)
                    self._next_id, self._positions = next_id, positions
                    raise
                if item is end:
                    return
                yield item  # type: ignore[misc]
        finally:
            closing = in_thread(thread, iterator.close)  # type: ignore[attr-defined]
            thread.shutdown(wait=False)
            await closing

    async def _end(self, step: asyncio.Future[object]) -> None:
        """A thread is in the midst of a step that nobody waits for any more, and would be until the next row comes."""
        while not step.done():
            if self._feeds is not None:
                self._feeds.stop()
            await asyncio.wait([step], timeout=_WAIT_S)
        step.exception()

    # Places

    def _position(self, topic: str) -> LogPosition:
        """Where to read a topic from: where no place tells, at the offset of the row's id, for its own is never less."""
        return self._positions.get(topic, LogPosition(self._next_id or 0, 0))

    def _go_to(self, place: Place) -> None:
        if not isinstance(place, dict) or place.get("v") != VERSION:
            raise UserError("place", place, "is not a place of a corrected stream", "give what place() gave")
        self._next_id = place["id"]
        self._positions = {topic: LogPosition(**position) for topic, position in place["topics"].items()}

    def _committed(self, group: str) -> Place | None:
        """The furthest place that any site has for the group."""
        from kafka import TopicPartition

        found: list[Place] = []

        def look(consumer: Any, topic: str) -> None:
            committed = consumer.committed(TopicPartition(topic, 0), metadata=True)
            if committed is not None and committed.metadata:
                found.append(json.loads(committed.metadata))

        self._at_sites(group, look)
        return max(found, key=lambda place: place["id"] or 0, default=None)

    def _at_sites(self, group: str, act: Callable[[Any, str], None]) -> None:
        """Do it at every site, with a consumer of this group; the error, where no site can be reached."""
        from kafka import KafkaConsumer, TopicPartition
        from kafka.errors import KafkaError

        from boreal.client.kafka_clients import make_client

        errors: list[Exception] = []
        for site, topic in self._topics(stable_only=True).items():
            consumer = None
            try:
                consumer = make_client(KafkaConsumer, {**self._consumer_options(site), "group_id": group})
                consumer.assign([TopicPartition(topic, 0)])
                act(consumer, topic)
            except (KafkaError, OSError) as error:
                errors.append(error)
            finally:
                if consumer is not None:
                    consumer.close(autocommit=False)
        if len(errors) == len(self._bootstrap):
            raise errors[0]


def _make_row_factory(model: type[T] | None) -> Callable[[dict[str, Any]], T]:
    if model is None:
        return lambda data: data  # type: ignore[return-value]
    from pydantic import TypeAdapter

    return TypeAdapter(model).validate_python
