"""The process of a source: it opens the parts of one incarnation (services.source.incarnation), and runs it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import FastAPI

from boreal.model.durations import parse_duration
from boreal.model.errors import CorruptError, UserError
from boreal.model.frames import Origin, Start
from deployment.evolution import EARLIEST
from deployment.joined_sources import SourceReaders
from deployment.layout import make_layout
from deployment.query_record import QueryRecord
from formats.control_messages import ControlItem
from formats.json_text import time_us
from formats.record_parsing import RecordShape
from formats.registry_records import KINDS, SchemaBook
from intake.intake import Intake, SourceStream, form_of
from logs.source_restart import SourceRestart, source_restart
from services.hosting.connections import Connections
from services.hosting.process import StatusPublisher, StopSignal
from services.hosting.registry import Registry
from services.hosting.trimmer import Trimmer
from services.kafka.control import NO_HURRY_MS, WAKE_MS, ControlPlane, gather_ms
from services.kafka.topics import control_topic
from services.source.incarnation import SourceIncarnation, SourceInputs
from services.source.letters import Letters
from services.source.options import SourceOptions
from services.source.post_box import PostBox
from services.source.spool import Spool
from services.source.user_topic import UserTopic
from services.source.web import WebServer, create_app
from services.storage.kafka_log import KafkaLogStore

_logger = logging.getLogger("boreal.source")


class SourceProcess:
    """`serve` runs until it is stopped or fenced, and returns the process's exit code."""

    def __init__(self, connections: Connections, options: SourceOptions, name: str, record: QueryRecord, stream: str) -> None:
        settings = connections.settings
        self.name = name
        self.stream = stream
        self.connections = connections
        self.clusters = connections.clusters
        query = record.query
        if stream not in query.streams:
            raise UserError("stream", stream, f"{query.name} has no such stream", f"name one of {list(query.streams)}")
        self.spec = query.streams[stream]
        if self.spec.topic is None:
            raise UserError(f"streams.{stream}.topic", None, "is not given", "name the topic that holds the stream's records")
        self.topic_name = self.spec.topic
        self.layout = make_layout(query, settings.site_names, record.inner)
        self.history_us = query.tuning.history
        self.since_ms = None if record.start == EARLIEST else time_us(record.start) // 1_000
        self.site = self.layout.site_of_stream(stream)
        self.own = self.clusters[self.site]
        self.options = options
        self.readers = SourceReaders(record.inner, stream, record.public)
        self.spool_directory = settings.data / "spool" / record.inner / stream

    def serve(self, stopping: StopSignal) -> int:
        with ExitStack() as stack:
            with self.connections.starts.take():
                incarnation, former = self._open(stack, stopping)
            return incarnation.run(former)

    def _open(self, stack: ExitStack, stopping: StopSignal) -> tuple[SourceIncarnation, SourceRestart]:
        """A new incarnation, and where the one before has ended. What it uses is closed with the stack."""
        plan = self.layout.plan
        shared = self.connections.logs
        logs_of_sites = KafkaLogStore(self.clusters, self.layout, history_us=self.history_us, clients=shared)
        store = stack.enter_context(closing(logs_of_sites))
        logs = {log: store.open(log) for _, log in self.layout.source_logs(self.stream)}
        fenced = threading.Event()
        for log in logs.values():
            log.on_fenced = fenced.set
        former = source_restart(list(logs.values()), self.topic_name)
        # At once: if an earlier incarnation still writes, we must restart, and waiting makes that more likely.
        start = Start(Origin("", former.incarnation + 1), 0)
        for id_, log in logs.items():
            log.append_later(replace(start, next_id=former.written[id_.key]))
        for log in logs.values():
            log.prepare()
        letters = stack.enter_context(closing(Letters(self.own, lambda: self.readers.names, self.stream, self.topic_name)))
        topic = UserTopic(
            self.connections.topics_of(self.site), self.topic_name, self._look_ms, self.options.topic_reader,
            with_keys=bool(self.spec.origins), since_ms=self.since_ms,
        )
        stack.callback(topic.close)
        box = self.open_box(letters)
        if box is not None:
            stack.enter_context(closing(box))
        registry = self.open_registry()
        if registry is not None:
            stack.enter_context(closing(registry))
        intake = self.make_intake(former)
        inputs = SourceInputs(topic, box, registry)
        incarnation = SourceIncarnation(
            plan, intake, inputs, logs, letters, stopping, fenced, self.connections.gathering, self.connections.turns
        )
        trimmer = stack.enter_context(closing(Trimmer(logs.values())))

        def say() -> dict[str, Any]:
            return {**incarnation.status(), "readers": list(self.readers.names), "holds": list(trimmer.holds)}

        home, desk = self.connections.home, self.connections.statuses
        publisher = StatusPublisher(home, self.name, say, desk, lambda: incarnation.is_calm)
        status = stack.enter_context(closing(publisher))
        incarnation.on_change = trimmer.on_hold = status.now
        if box is not None and (app := self.make_web_app(box)) is not None and self.options.http_port is not None:
            stack.enter_context(closing(WebServer(app, self.options.http_host, self.options.http_port)))
        control = ControlPlane(self.connections.controls, control_topic(plan.query), self.name, self.site)
        stack.enter_context(closing(control))
        take_items = partial(self._take_items, incarnation, trimmer)
        least_ms = WAKE_MS if plan.calm_pause_us else NO_HURRY_MS
        control.listen(take_items, lambda: gather_ms(least_ms, incarnation.rest_us))
        take_change = partial(self._take_change, incarnation, status.now)
        self.connections.watch.add(take_change)
        stack.callback(self.connections.watch.remove, take_change)
        return incarnation, former

    def _take_items(self, incarnation: SourceIncarnation, trimmer: Trimmer, _sender: str, items: list[ControlItem]) -> None:
        for item in items:
            if "trim" in item:
                trimmer.take(item)
            elif self.stream in item.get("wake", ()):
                incarnation.wake()

    def _take_change(
        self, incarnation: SourceIncarnation, say: Callable[[], None], name: str, record: QueryRecord | None
    ) -> None:
        """Apply a new X, and who reads the stream, at once. For all other changes the supervisor restarts the process."""
        before = self.readers.names
        found = self.readers.take(name, record)
        if self.readers.names != before:
            say()
        if found is None:
            return
        incarnation.may_gather = self.readers.may_gather
        if parse_duration(found.spec["delay_threshold"], "delay_threshold") != incarnation.plan.delay_threshold_us:
            incarnation.set_threshold(make_layout(found.query, self.layout.sites).plan)

    def make_intake(self, former: SourceRestart) -> Intake:
        """The checks and ids of the new incarnation."""
        stream = SourceStream.of(self.layout.plan, self.stream, self.spec, self.topic_name)
        forms = SchemaBook.of(self.spec), form_of(self.spec)
        return Intake(stream, Origin("", former.incarnation + 1), former.place, *forms)

    def open_registry(self) -> Registry | None:
        """The registry of the stream's schemas; None if its records have none."""
        if self.spec.format not in KINDS:
            return None
        name, settings = self.connections.settings.registry_of(f"streams.{self.stream}.registry", self.spec.registry)
        return Registry(name, settings, self.spec.format)

    def make_web_app(self, box: PostBox) -> FastAPI | None:
        """Where rows are posted; None if that is off, or anybody could do it."""
        if self.options.http_port is None:
            return None
        if self.spec.format != "json":
            _logger.warning("posted rows are JSON, and the stream's format is %s: nothing can be posted here", self.spec.format)
            return None
        if self.options.http_token is None:
            _logger.error("BOREAL_HTTP_TOKEN is not set, and nothing can be posted here: set it, or post to the API")
            return None
        token = self.options.http_token.get_secret_value()
        return create_app(box, RecordShape.of(self.spec), lambda: self.readers.names, self.stream, token)

    def open_box(self, letters: Letters) -> PostBox | None:
        """None if posting is off and the spool is empty, or if the spool cannot be opened."""
        directory = self.spool_directory
        try:
            if self.options.http_port is None and not (directory.is_dir() and any(directory.iterdir())):
                return None
            spool = Spool(directory, self.options.spool_bytes)
        except (OSError, CorruptError) as error:
            _logger.error(
                "the spool in %s cannot be opened, and nothing can be posted here: %s; repair the disk, or move the directory "
                "away (its rows are not in Kafka), and restart this source",
                *(directory, error),
            )
            return None
        return PostBox(self.own, self.topic_name, spool, letters.refuse)

    @property
    def _look_ms(self) -> int:
        """How long a poll may gather records: half a bucket, which goes on when it is over, and at most half the boundary
        interval: the other half is left to log them."""
        plan = self.layout.plan
        return max(min(plan.bucket_run_us, plan.boundary_interval_us) // 2_000, 1)
