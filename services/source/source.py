"""The process of a source: it opens the parts of one incarnation (services.source.incarnation), and runs it."""

from __future__ import annotations

import logging
import sys
import threading
from contextlib import ExitStack, closing
from dataclasses import replace

from boreal.model.errors import CorruptError, UserError
from boreal.model.frames import Origin, Start
from deployment.layout import make_layout
from formats.control_messages import ControlItem
from formats.record_parsing import RecordShape
from intake.intake import Intake, SourceStream
from logs.source_restart import SourceRestart, source_restart
from services.hosting.process import THREAD_SWITCH_S, StatusPublisher
from services.hosting.trimmer import Trimmer
from services.kafka.clusters import make_clusters
from services.kafka.control import NO_HURRY_MS, ControlPlane
from services.kafka.queries import QueryRegistry
from services.kafka.settings import ServiceSettings
from services.kafka.topics import control_topic
from services.source.incarnation import SourceIncarnation
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

    def __init__(self, settings: ServiceSettings, options: SourceOptions, name: str, query: str, stream: str) -> None:
        self.name = name
        self.stream = stream
        self.clusters = make_clusters(settings, name)
        self.home = self.clusters[settings.home]
        record = QueryRegistry(self.home).find(query)
        if stream not in record.query.streams:
            raise UserError("stream", stream, f"{query} has no such stream", f"name one of {list(record.query.streams)}")
        self.spec = record.query.streams[stream]
        if self.spec.topic is None:
            raise UserError(f"streams.{stream}.topic", None, "is not given", "name the topic that holds the stream's records")
        self.topic_name = self.spec.topic
        self.layout = make_layout(record.query, settings.site_names)
        self.history_us = record.query.tuning.history
        self.site = self.layout.site_of_stream(stream)
        self.own = self.clusters[self.site]
        self.options = options
        self.spool_directory = settings.data / "spool" / query / stream

    def serve(self, stopping: threading.Event) -> int:
        sys.setswitchinterval(THREAD_SWITCH_S)
        plan = self.layout.plan
        with ExitStack() as stack:
            store = stack.enter_context(closing(KafkaLogStore(self.clusters, self.layout, history_us=self.history_us)))
            logs = {log: store.open(log) for _, log in self.layout.source_logs(self.stream)}
            fenced = threading.Event()
            for log in logs.values():
                log.on_fenced = fenced.set
            former = source_restart(list(logs.values()), self.topic_name)
            # At once: if an earlier incarnation still writes, we must restart, and waiting makes that more likely.
            start = Start(Origin("", former.incarnation + 1), 0)
            for id_, log in logs.items():
                log.append_later(replace(start, next_id=former.written[id_.key]))
            letters = stack.enter_context(closing(Letters(self.own, plan.query, self.stream, self.topic_name)))
            topic = stack.enter_context(closing(UserTopic(self.own, self.topic_name, self._look_ms)))
            box = self.open_box(letters)
            if box is not None:
                stack.enter_context(closing(box))
            incarnation = SourceIncarnation(plan, self.make_intake(former), topic, logs, letters, box, stopping, fenced)
            status = stack.enter_context(closing(StatusPublisher(self.home, self.name, incarnation.status)))
            incarnation.on_change = status.now
            if box is not None and self.options.http_port is not None:
                shape = RecordShape(self.spec.time, self.spec.time_unit, self.spec.attributes)
                app = create_app(box, shape, plan.query, self.stream)
                stack.enter_context(closing(WebServer(app, self.options.http_host, self.options.http_port)))
            trimmer = stack.enter_context(closing(Trimmer(logs.values())))
            control = ControlPlane(self.clusters, control_topic(plan.query), self.name, self.site)
            stack.enter_context(closing(control))
            control.listen(lambda _, items: _take_trims(items, trimmer), NO_HURRY_MS)
            return incarnation.run(former)

    def make_intake(self, former: SourceRestart) -> Intake:
        """The checks and ids of the new incarnation."""
        stream = SourceStream.of(self.layout.plan, self.stream, self.spec, self.topic_name)
        return Intake(stream, Origin("", former.incarnation + 1), former.place)

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
        """How long a poll may gather records: half the boundary interval, so that the other half is left to log them."""
        return max(self.layout.plan.boundary_interval_us // 2_000, 1)


def _take_trims(items: list[ControlItem], trimmer: Trimmer) -> None:
    for item in items:
        if "trim" in item:
            trimmer.take(item)
