"""An installation of queries on a stack: what the command line does, for the API, with what it reads kept current.

Reads come from what three followers have heard, so they ask no server and go on while Kafka is away. A change returns when the
followers have heard of it, so that the same caller's next read shows it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

from kafka.consumer.fetcher import ConsumerRecord

from api.event_history import EventHistory
from api.faults import ResolvedFault, resolve
from api.installation import (
    Change,
    CheckResult,
    ForbiddenError,
    Freshness,
    NotFoundError,
    Precondition,
    Readiness,
    StartedFault,
    StreamPlace,
    UnavailableError,
    View,
)
from api.posts import Posts
from api.said_replays import SaidReplays
from api.stack_output import OutputTail, StackOutput
from boreal.model.errors import UserError
from boreal.query.plan import Plan
from boreal.query.planner import plan
from boreal.query.refusals import did_you_mean
from boreal.query.spec import Query
from deployment.audit import replay_event
from deployment.layout import Layout, layout_of
from deployment.liveness import Liveness
from deployment.placement_record import WORKER
from deployment.query_record import QueryRecord
from deployment.status_fields import shown_worker
from deployment.watched_query import WatchedQuery
from embedded.recording import Recording, Span, record
from formats.dead_letter import LetterChoice, LetterPage, ReplayOutcome
from services.hosting.process import now_us
from services.kafka.events import event_of
from services.kafka.follower import TopicFollower
from services.kafka.letter_topic import OvertakenError
from services.kafka.queries import QueryRegistry
from services.kafka.settings import ServiceSettings
from services.kafka.topics import EVENTS, out_topic, stable_topic
from services.monitor.reports import QueryReports
from services.stack.chaos import FaultRefused, request_fault, request_heal
from services.stack.operations import SILENT_AFTER_S, Operations, OutOfReach, reaching
from services.storage.recorded_logs import RecordedLogs

HEARD_WITHIN_S = 5.0
"""How long a read waits for what it needs to know, and a change until it is heard of."""

MASK = "**********"
SECRET_WORDS = ("password", "secret", "token", "key", "credential")
"""A setting of Spark's own whose name has one of these is not shown."""


class StackInstallation:
    """See `api.installation.Installation`."""

    def __init__(self, settings: ServiceSettings, *, allow_chaos: bool = False) -> None:
        """allow_chaos: whether a supervisor beside this process obeys faults."""
        self._settings = settings
        self._faults = settings.data if allow_chaos else None
        self._operations = Operations(settings)
        self._home = self._operations.home
        self._records: dict[str, QueryRecord] = {}
        self._listed: Mapping[str, QueryRecord] | None = None
        self._unheard: dict[str, WatchedQuery] = {}
        self._heard = threading.Condition()
        self._watch = QueryRegistry(self._home).watch(self._take_record)
        self._statuses = self._operations.follow_statuses()
        self._reports = QueryReports(self._home)
        self.events = EventHistory()
        self._events = TopicFollower(self._home, EVENTS, self._take_event, read_committed=True)
        self._tails: dict[tuple[str, View], tuple[OutputTail, int]] = {}
        self._tails_lock = threading.Lock()
        self._replays = SaidReplays(settings.data / "replays.jsonl")
        self._posts = Posts(self._operations.clusters)

    @property
    def sites(self) -> tuple[str, ...]:
        return self._settings.site_names

    def close(self) -> None:
        for follower in (self._watch, self._reports, self._events, self._operations, self._posts):
            follower.close()

    # Reads

    def queries(self, min_revision: tuple[str, int] | None = None) -> Mapping[str, QueryRecord]:
        if not self._watch.is_current.wait(HEARD_WITHIN_S):
            problem = "could not be reached since the API was started, so no query is known"
            raise UnavailableError("BOREAL_SITES", None, problem, "ask again soon")
        with self._heard:
            if min_revision is not None:
                name, revision = min_revision

                def is_known() -> bool:
                    return (record := self._records.get(name)) is not None and record.revision >= revision

                if not self._heard.wait_for(is_known, HEARD_WITHIN_S):
                    raise UnavailableError("min_revision", revision, f"{name} has no such revision yet", "ask again soon")
            if self._listed is None:
                self._listed = MappingProxyType(dict(sorted(self._records.items())))
            return self._listed

    def freshness(self) -> Freshness:
        newest = max((float(status["at_ms"]) for status in self._statuses.newest().values()), default=0.0)
        return Freshness(newest, time.time() * 1_000 - newest > SILENT_AFTER_S * 1_000)

    def readiness(self) -> Readiness:
        if not self.is_known or self.freshness().is_stale:
            return Readiness(False, ("the home site",))
        reports = self._reports.newest()
        running = [name for name, record in self.queries().items() if not record.paused]
        waits_for = tuple(name for name in running if not reports.get(name, {}).get("ready"))
        return Readiness(not waits_for, waits_for)

    @property
    def is_known(self) -> bool:
        """Whether all queries are known, what was said of them, and what happened."""
        followers = (self._watch, self._statuses, self._reports, self._events)
        return all(follower.is_current.is_set() for follower in followers)

    def status(self, name: str) -> Mapping[str, Any]:
        return self._status(self._record(name), self._reports.newest())

    def statuses(self, names: Collection[str]) -> Mapping[str, Mapping[str, Any]]:
        reports, records = self._reports.newest(), self.queries()
        return {name: self._status(records[name], reports) for name in names if name in records}

    def layout(self, name: str) -> Layout:
        return layout_of(self._record(name), self.sites)

    def instances(self, name: str) -> Sequence[Mapping[str, Any]]:
        record, now_ms = self._record(name), time.time() * 1_000
        spec = record.spec
        most = max([spec["replicas"], *(each.get("replicas", 1) for each in spec.get("fragments", {}).values())])
        newest = self._statuses.newest()
        said = [newest.get(f"node.{record.inner}.r{number}") for number in range(most)]
        return [
            _aged(entry, max(now_ms - status["at_ms"], 0.0))
            for status in said
            if status is not None and status["at_ms"] >= now_ms - SILENT_AFTER_S * 1_000
            for entry in status["instances"]
        ]

    def liveness(self, name: str) -> Liveness:
        with _reaching():
            return self._operations.liveness(self._record(name))

    def running(self, name: str) -> Sequence[str]:
        return self._operations.processes_of(name, self.queries())

    def workers(self) -> Sequence[Mapping[str, Any]]:
        now_ms = time.time() * 1_000
        heard = [
            said
            for _, said in sorted(self._statuses.newest().items())
            if said["kind"] == WORKER and not said["leaves"] and said["at_ms"] >= now_ms - SILENT_AFTER_S * 1_000
        ]
        return [{**shown_worker(said), "machine": said["machine"], "roles": sorted(said["roles"])} for said in heard]

    def config(self) -> Mapping[str, Any]:
        shown: dict[str, Any] = self._settings.model_dump(mode="json")
        shown["redis"]["url"] = self._settings.redis.address  # without the password that it may hold
        conf = shown["spark"]["conf"]
        conf.update({name: MASK for name in conf if any(word in name.lower() for word in SECRET_WORDS)})
        return shown

    # Changes

    def check(self, query: Query, start: str) -> CheckResult:
        found = self._operations.preview(query, start, self.queries())
        return CheckResult(plan(query).notes, found)

    def put(self, query: Query, precondition: Precondition) -> Change:
        is_new = False

        def check(record: QueryRecord | None) -> None:
            nonlocal is_new
            is_new = record is None
            precondition.check(query.name, record)

        with _reaching():
            record = self._operations.apply(query, check, precondition.by)
        return self._known(record, is_new)

    def change(self, name: str, fields: Mapping[str, Any], precondition: Precondition) -> Change:
        heard = self._record(name)
        return self._act(name, precondition, lambda check, by: self._operations.set(name, fields, check, by, heard))

    def pause(self, name: str, paused: bool, precondition: Precondition) -> Change:
        return self._act(name, precondition, lambda *checked: self._operations.pause(name, paused, *checked))

    def restart(self, name: str, only_failed: bool, precondition: Precondition) -> Change:
        failed = [replica for replica in self.status(name)["replicas"] if replica["state"] in ("FAILURE", "STARTING")]
        if only_failed and not failed:
            record = self._record(name)
            precondition.check(name, record)
            return Change(record)
        return self._act(name, precondition, lambda *checked: self._operations.restart(name, *checked))

    def evolve(self, query: Query, start: str, precondition: Precondition) -> Change:
        return self._act(query.name, precondition, lambda *checked: self._operations.evolve(query, start, *checked))

    def roll_back(self, name: str, precondition: Precondition) -> Change:
        return self._act(name, precondition, lambda *checked: self._operations.roll_back(name, lambda _: None, *checked))

    def settle(self, name: str, precondition: Precondition) -> Change:
        return self._act(name, precondition, lambda *checked: self._operations.settle(name, lambda _: None, *checked))

    def delete(self, name: str, precondition: Precondition) -> None:
        self._record(name)
        with _reaching():
            check = partial(precondition.check, name)
            self._operations.delete(name, lambda waits_for: None, check, precondition.by)
        with self._heard:
            self._heard.wait_for(lambda: name not in self._records, HEARD_WITHIN_S)

    # Rows

    def streams(self) -> Sequence[StreamPlace]:
        return [
            StreamPlace(name, stream, f"{fields.get('site') or self._settings.home}:{fields.get('topic')}")
            for name, record in self.queries().items()
            for stream, fields in record.spec["streams"].items()
        ]

    def append(self, place: StreamPlace, records: Sequence[bytes]) -> None:
        # As the record has it: each request comes here, and to parse a query costs more than to look.
        written_as = self._record(place.query).spec["streams"][place.stream].get("format", "json")
        if written_as != "json":
            fix = "write its records with a producer of your own"
            raise UserError("stream", place.stream, f"takes {written_as}, and posted rows are JSON", fix)
        site, _, topic = place.log.partition(":")
        self._posts.post(site, topic, records)

    def dead_letters(self, name: str, choice: LetterChoice, limit: int) -> LetterPage:
        self._record(name)
        with _reaching():
            return self._operations.dead_letters(name, choice, limit)

    def replay_letters(self, name: str, choice: LetterChoice, limit: int, by: str) -> ReplayOutcome:
        self._record(name)
        try:
            with _reaching():
                outcome = self._operations.replay_letters(name, choice, limit, by)
        except OvertakenError as error:
            self._note_replay(name, choice, ReplayOutcome(error.replayed, {}), by)
            raise UnavailableError(error.field, error.value, error.problem, error.fix) from None
        self._note_replay(name, choice, outcome, by)
        return outcome

    def _note_replay(self, name: str, choice: LetterChoice, outcome: ReplayOutcome, by: str) -> None:
        """Before the answer, so that no event of a replay is lost."""
        if outcome.replayed:
            self._replays.add(replay_event(name, choice, outcome, time.time() * 1_000, by))

    def replays(self) -> list[dict[str, Any]]:
        """The last replays of dead letters, for the monitor to record."""
        return self._replays.shown()

    def output(self, name: str, view: View) -> StackOutput:
        self._record(name)
        key = (name, view)
        with self._tails_lock:
            tail, readers = self._tails.get(key, (None, 0))
            if tail is None:
                topic = stable_topic(name) if view == "stable" else out_topic(name, self._settings.home, self.sites)
                tail = OutputTail(self._home, topic, view)
            self._tails[key] = tail, readers + 1
        return StackOutput(tail, lambda: self._leave(key))

    def _leave(self, key: tuple[str, View]) -> None:
        """A reader is closed; the last one closes what they shared."""
        with self._tails_lock:
            tail, readers = self._tails.pop(key)
            if readers > 1:
                self._tails[key] = tail, readers - 1
                return
        tail.close()

    def recorded(self, name: str, span: Span, most_rows: int) -> Recording:
        query, layout = self._record(name).query, self.layout(name)
        with _reaching(), reaching(self._settings), RecordedLogs(self._operations.clusters, layout) as logs:
            return record(layout.plan, query, partial(logs.newest_first, span.end), span, most_rows)

    # Faults

    def fault(self, text: str, by: str = "api") -> StartedFault:
        if self._faults is None:
            fix = "start the stack with boreal up --allow-chaos"
            raise ForbiddenError("fault", text, "is not allowed: this installation was started without --allow-chaos", fix)
        found = resolve(text, self.queries())
        record = self._record(found.query)
        layouts = [self.layout(found.query)]
        for version in record.runs()[1:] if found.fault.stream and not found.fault.to_replica else ():
            # Both versions read the stream's topic.
            other = layout_of(version, self.sites)
            if any(edge.operator == found.fault.stream for edge in other.plan.sources):
                layouts.append(other)
        processes = list(dict.fromkeys(process for each in layouts for process in _processes_of(found, each)))
        if found.is_heal:
            return self._heal(found, [each.plan for each in layouts], processes)
        ends_at_ms = time.time() * 1_000 + (found.fault.for_us or 0) / 1_000
        try:
            said = {"text": found.text, "query": found.query, "by": by}
            fault_id = request_fault(self._faults, found.fault, processes, **said)
        except FaultRefused as error:
            raise UnavailableError("fault", text, str(error), "see boreal status") from None
        if found.fault.losing_checkpoint:
            # Now that it is dead and held, it writes no other one.
            with _reaching():
                self._operations.forget_checkpoints(record, f"{found.fault.fragment}.{found.fault.replica}.")
        return StartedFault(fault_id, found.text, tuple(processes), ends_at_ms)

    def _heal(self, found: ResolvedFault, plans: Sequence[Plan], processes: Sequence[str]) -> StartedFault:
        """End the faults of a stream or a replica; those of a stream also where they concern one replica alone."""
        assert self._faults is not None, "faults are allowed"
        stream = found.fault.stream
        replicas = {
            f"node.{plan.query}.{replica}" for plan in plans for fragment in plan.fragments for replica in fragment.replicas
        }
        healed = [(process, "") for process in processes]
        healed += [(node, stream) for node in sorted(replicas) if stream]
        try:
            request_heal(self._faults, healed)
        except FaultRefused as error:
            raise UnavailableError("fault", found.text, str(error), "see boreal status") from None
        return StartedFault(found.text.replace(" ", "-"), found.text, tuple(processes), None)

    def _act(self, name: str, precondition: Precondition, act: Any) -> Change:
        self._record(name)
        with _reaching():
            return self._known(act(partial(precondition.check, name), precondition.by))

    def _known(self, record: QueryRecord, is_new: bool = False) -> Change:
        """The change, once the followers have heard of it."""

        def is_heard() -> bool:
            return (known := self._records.get(record.name)) is not None and known.revision >= record.revision

        with self._heard:
            self._heard.wait_for(is_heard, HEARD_WITHIN_S)
        return Change(record, is_new, plan(record.query).notes)

    def _record(self, name: str) -> QueryRecord:
        records = self.queries()
        if name not in records:
            raise NotFoundError("NAME", name, "there is no such query", did_you_mean(name, records))
        return records[name]

    def _status(self, record: QueryRecord, reports: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        """What the monitor says of a query; before it says anything, what it would say when it begins."""
        if record.name in reports:
            return reports[record.name]
        try:
            watched = self._unheard.get(record.name)
            if watched is None or watched.record.revision != record.revision:
                watched = self._unheard[record.name] = WatchedQuery(record.runs()[0], self.sites, now_us())
            return watched.status(now_us())
        except UserError as error:
            problem = f"cannot run in this version: {error}"
            raise UserError("NAME", record.name, problem, "change it, or use the version that made it") from None

    def _take_event(self, record: ConsumerRecord) -> None:
        """In the thread of the follower."""
        event = event_of(record)
        if event is not None:
            if self.events.last is None:
                self.events.begin(record.offset)
            self.events.take(record.offset, event)

    def _take_record(self, name: str, record: QueryRecord | None) -> None:
        """In the thread of the watch."""
        with self._heard:
            self._unheard.pop(name, None)
            self._listed = None
            if record is None:
                self._records.pop(name, None)
            else:
                self._records[name] = record
            self._heard.notify_all()


def _aged(entry: Mapping[str, Any], age_ms: float) -> dict[str, Any]:
    """What an instance says, with the silence of its inputs as it has grown since then: statuses come every second."""
    inputs = [
        {**each, "silent_for_ms": each["silent_for_ms"] + (age_ms if each["silent"] else 0.0)} for each in entry["inputs"]
    ]
    return {**entry, "inputs": inputs}


def _processes_of(found: ResolvedFault, layout: Layout) -> list[str]:
    """The processes that a fault concerns: a stream's source, or a replica's node. UserError if it is not possible on a
    stack: all fragments of a replica read a stream over one link."""
    fault, plan = found.fault, layout.plan
    others = [
        other.name
        for other in plan.fragments
        if fault.fragment and other.name != fault.fragment and any(edge.operator == fault.stream for edge in other.edges)
    ]
    if fault.to_replica and others:
        fix = f"cut {fault.stream} to {fault.to_replica} for D, which cuts all its fragments"
        raise UserError("fault", found.text, f"would cut {', '.join(others)} of {fault.to_replica} too", fix)
    replica = fault.to_replica or fault.replica
    return [f"node.{plan.query}.{replica}" if replica else layout.source_role(fault.stream)]


@contextmanager
def _reaching() -> Iterator[None]:
    """A server out of reach is no fault of the caller."""
    try:
        yield
    except OutOfReach as error:
        raise UnavailableError(error.field, error.value, error.problem, error.fix) from None
