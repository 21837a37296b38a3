"""`CorrectedStream`: the results of a query, read from one or several sites; outages and site failovers are handled inside."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, overload

from boreal.client.changes import Change, Missing, MissingRows, Stable
from boreal.client.corrector import Corrector, Delivery, LogPosition
from boreal.client.result_frame import ResultFrame, check_frame, frame_of_changes, frame_of_rows, frame_of_view
from boreal.client.site_readers import SiteReaders
from boreal.client.view import View
from boreal.model.errors import UserError

T = TypeVar("T")
U = TypeVar("U")

Until = Literal["now"] | None
"""Where an iteration ends: at what was there when it began; None: only after `close()`."""

Place = dict[str, Any]
"""The place of a reader, as a JSON object: {"v": 1, "id": the id of the next stable row, "topics": {TOPIC: POSITION}}. POSITION
is {"offset": N, "next_id": N, "topic_id": TEXT}."""

VERSION = 1
HOME = ""
"""The name of the only site, if the application does not name it."""

_WAIT_S = 0.1


class CorrectedStream(Generic[T]):
    """The output of the query `query`.

    bootstrap: the address of Kafka. If the deployment has several sites: their addresses by site name; the stream then
        continues as long as one of them is reachable.
    model: a pydantic model, dataclass or TypedDict of a row. Without it, rows are dicts.
    place: where to continue, as `place()` returned it.
    group: continue at the place that `commit(group)` stored, unless `place` is set.
    silence_s: seconds. If the live site is silent for longer and another site is not, the stream switches to that site.
    options: options of kafka-python's consumer, such as security_protocol, ssl_cafile, sasl_mechanism, sasl_plain_username.

    Use one of the iterators `stable()`, `changes()` and `latest()` at a time. They end after `close()`; with `until="now"`, at
    what was there when they began. A row is consumed when the application asks for the next one, or calls `place()` after it.
    If the model raises an error for a row, all rows before it are returned first. Each new iteration raises the error again,
    because the place stays before that row.

    A query whose output topic does not exist when an iteration begins is a UserError. An unreachable Kafka is waited for; but
    with `until="now"` it is a KafkaError, if no other site is reachable.
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
        self._framed: View[dict[str, Any]] = View()
        self._next_id: int | None = None
        self._positions: dict[str, LogPosition] = {}
        self._feeds: SiteReaders | None = None
        self._is_closed = False
        if place is None and group is not None:
            place = self._committed(group)
        if place is not None:
            self._go_to(place)

    # Iterators

    def stable(self, until: Until = None) -> Iterator[T]:
        """All stable rows, in order, each exactly once. MissingRows if some are no longer kept."""
        return _rows(self._deliveries(True, self._make_row, until))

    def changes(self, until: Until = None) -> Iterator[Change[T]]:
        """All changes: stable and tentative rows, revocations and boundaries."""
        for delivery in self._deliveries(False, self._make_row, until):
            yield delivery.change

    def latest(self, until: Until = None) -> Iterator[View[T]]:
        """The latest row of each key, stable or tentative. Each step returns the same view object, after a change to it."""
        view: View[T] = View()
        for delivery in self._deliveries(False, self._make_row, until):
            if view.take(delivery.change):
                yield view

    def astable(self) -> AsyncIterator[T]:
        """`stable()` for `async for`. After a cancellation, no row is lost: the place is that of the last row returned."""
        return self._in_threads(self.stable)

    def achanges(self) -> AsyncIterator[Change[T]]:
        return self._in_threads(self.changes)

    def alatest(self) -> AsyncIterator[View[T]]:
        return self._in_threads(self.latest)

    def frame(self, view: str = "stable", types: Mapping[str, str] | None = None) -> ResultFrame:
        """What is there now, as a table: `.to_arrow()` or `.to_pandas()`. The stream goes on after it, as after an iteration.

        view: "stable": the stable rows since the place of the stream. "changes": all changes since then, one a row, with the
            columns `_type`, `_revoked` and others (`boreal.client.result_frame.FACTS`). "latest": the newest row of each key,
            with `_tentative`; of all rows that this stream has given in such frames.
        types: the types of columns, as the query file names them: {"dep_delay": "double"}. The others follow from the values;
            `time`, `window_start` and `window_end` are timestamps. The model of the stream does not matter here.
        """
        types = types or {}
        check_frame(view, types)
        before = self._next_id, dict(self._positions)
        try:
            deliveries = self._deliveries(view == "stable", _as_it_is, "now")
            match view:
                case "stable":
                    return frame_of_rows(self._rows_before_a_gap(deliveries), types)
                case "changes":
                    return frame_of_changes([delivery.change for delivery in deliveries], types)
                case _:
                    self._framed.forget_tentative()  # A new iteration gives them again.
                    for delivery in deliveries:
                        self._framed.take(delivery.change)
                    return frame_of_view(self._framed, types)
        except MissingRows:
            raise
        except BaseException:
            # What was read is not returned, so that it is not consumed.
            self._next_id, self._positions = before
            raise

    def _rows_before_a_gap(self, deliveries: Iterator[Delivery[U]]) -> list[U]:
        """The stable rows before the first that are missing. MissingRows if those are the first ones."""
        rows: list[U] = []
        try:
            for row in _rows(deliveries):
                rows.append(row)  # One by one: the rows before a gap are kept.
        except MissingRows as gap:
            if not rows:
                raise
            self._next_id = gap.first_id
        return rows

    # The place

    def place(self) -> Place:
        """The place at which another stream continues: at the next stable row. That stream returns the tentative rows since
        the last stable row again."""
        topics = {topic: asdict(position) for topic, position in self._positions.items()}
        return {"v": VERSION, "id": self._next_id, "topics": topics}

    def commit(self, group: str) -> None:
        """Store the place in Kafka, as the committed offset of this consumer group, at every reachable site. No other program
        may use the group. KafkaError if no site is reachable. Kafka keeps the place for `offsets.retention.minutes` after the
        last commit, by default a week."""
        from kafka import OffsetAndMetadata, TopicPartition

        text = json.dumps(self.place(), separators=(",", ":"))
        self._at_sites(
            group,
            lambda consumer, topic: consumer.commit(
                {TopicPartition(topic, 0): OffsetAndMetadata(self._position(topic).offset, text, -1)}
            ),
        )

    def close(self) -> None:
        """End the iteration. May be called from any thread."""
        self._is_closed = True
        if self._feeds is not None:
            self._feeds.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # Reading

    def _deliveries(self, stable_only: bool, make_row: Callable[[dict[str, Any]], U], until: Until) -> Iterator[Delivery[U]]:
        if until not in (None, "now"):
            raise UserError("until", until, "is not an end of an iteration", 'write until="now", or leave it out')
        topics = self._topics(stable_only)
        positions = {site: self._position(topic) for site, topic in topics.items()}
        with self._reading(topics, positions, until == "now") as feeds:
            corrector = Corrector(positions, make_row, 0.0, self._next_id, stable_only, self._silence_s)
            # Time in which the application does not read must not count as the silence of a site.
            now, looked_at = 0.0, time.monotonic()
            while not feeds.is_closed:
                batches = feeds.take(_WAIT_S)
                now += min(time.monotonic() - looked_at, _WAIT_S)
                looked_at = time.monotonic()
                # The progress of the other sites counts once the rows of this round are consumed.
                self._positions |= {topics[site]: position for site, position in corrector.positions().items()}
                deliveries = corrector.take(batches, now)
                is_over = feeds.is_over()
                if is_over:
                    deliveries += corrector.finish()
                for delivery in deliveries:
                    self._next_id = delivery.next_id
                    self._positions[topics[delivery.site]] = delivery.position
                    yield delivery
                if corrector.failure is not None:
                    raise corrector.failure
                if is_over:
                    return

    @contextmanager
    def _reading(
        self, topics: dict[str, str], positions: dict[str, LogPosition], until_now: bool = False
    ) -> Iterator[SiteReaders]:
        if self._feeds is not None:
            raise UserError("iteration", None, "another iteration of this stream is active", "create a second CorrectedStream")
        self._feeds = feeds = SiteReaders(until_now)
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
        """The topic of each site. With one site, stable rows are read from q.stable, which is smaller than q.out."""
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
        """Run each step of a blocking iteration in a dedicated thread. A few quiet streams would block all threads of the event
        loop's own pool."""
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
        """Stop a cancelled step, which would otherwise block its thread until the next row arrives."""
        while not step.done():
            if self._feeds is not None:
                self._feeds.stop()
            await asyncio.wait([step], timeout=_WAIT_S)
        step.exception()

    # Places

    def _position(self, topic: str) -> LogPosition:
        """The position to read a topic from. By default, the offset is the id of the next row: no row has an offset below its
        id."""
        return self._positions.get(topic, LogPosition(self._next_id or 0, 0))

    def _go_to(self, place: Place) -> None:
        if not isinstance(place, dict) or place.get("v") != VERSION:
            raise UserError("place", place, "is not a place of a corrected stream", "pass a value that place() returned")
        self._next_id = place["id"]
        self._positions = {topic: LogPosition(**position) for topic, position in place["topics"].items()}

    def _committed(self, group: str) -> Place | None:
        """The latest place that any site has stored for the group; None if there is none."""
        from kafka import TopicPartition

        found: list[Place] = []

        def look(consumer: Any, topic: str) -> None:
            committed = consumer.committed(TopicPartition(topic, 0), metadata=True)
            if committed is not None and committed.metadata:
                found.append(json.loads(committed.metadata))

        self._at_sites(group, look)
        return max(found, key=lambda place: place["id"] or 0, default=None)

    def _at_sites(self, group: str, act: Callable[[Any, str], None]) -> None:
        """Call `act` for every site, with a consumer of this group. Raises the first error if no site is reachable."""
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


def _rows(deliveries: Iterable[Delivery[U]]) -> Iterator[U]:
    """The stable rows. MissingRows if some are no longer kept."""
    for delivery in deliveries:
        if isinstance(delivery.change, Missing):
            raise MissingRows(delivery.change.first_id, delivery.change.last_id)
        if isinstance(delivery.change, Stable):
            yield delivery.change.data


def _as_it_is(data: dict[str, Any]) -> dict[str, Any]:
    return data


def _make_row_factory(model: type[T] | None) -> Callable[[dict[str, Any]], T]:
    if model is None:
        return lambda data: data  # type: ignore[return-value]
    from pydantic import TypeAdapter

    return TypeAdapter(model).validate_python
