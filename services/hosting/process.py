"""Common to all service processes: the clock, logging, the stop signal, and the published status."""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

import psutil
from kafka import KafkaProducer
from kafka.errors import KafkaError

from services.hosting.log_lines import set_up_logging
from services.kafka.clusters import Cluster, close_producer, log_retry
from services.kafka.load import LoadDegree
from services.kafka.settings import ServiceSettings
from services.kafka.timekeeper import Timekeeper
from services.kafka.topics import STATUS

EXIT_STOPPED = 0
EXIT_FAILED = 1
EXIT_FENCED = 3
"""Another incarnation of this process has begun (R25)."""
EXIT_BEGIN_ANEW = 4
"""The log entries that it had to read are gone; it restarts from what the logs still hold (R27)."""
EXIT_TAKEN_OVER = 5
"""An egress has ended with one version of its query; its next incarnation, in the same process, begins with another."""

STATUS_INTERVAL_S = 1.0
CALM_INTERVALS = 2
"""A calm role says how it is once in so many intervals: often enough that one lost status does not make it count as dead."""
LOADED_RESTS_S = 0.0, 0.2, 0.4
"""For how long statuses that have changed gather after others were published, by how loaded the process is."""
GARBAGE_THRESHOLDS = 20_000, 20, 10
"""When Python's garbage collector looks for what refers to itself: at the newest objects, once there are so many more of them;
at those that it has seen once, and at all of them, every so many times. All threads wait meanwhile. By default it looks at all
several times a second where many rows are in queues, for 0.1 s each time."""

_logger = logging.getLogger("boreal.process")


_timekeeper = Timekeeper()


def now_us() -> int:
    """The services' clock: microseconds since the epoch, an estimate of the clock of the home site's broker. It is monotonic
    and does not jump while the process lives."""
    return _timekeeper.now_us()


def set_clock(settings: ServiceSettings, name: str) -> None:
    """Set the process's clock. Must be called before the process stamps anything: its times must agree with those of others."""
    _timekeeper.begin(Cluster(settings.home, settings, name))


def program_version() -> str:
    """The version of boreal that this process runs."""
    try:
        return version("boreal")
    except PackageNotFoundError:
        return "unknown"


class StopSignal:
    """Asks a process, or a role, to end: as a `threading.Event` that sets others too."""

    def __init__(self) -> None:
        self._is_set = threading.Event()
        self._others: list[threading.Event] = []

    def set(self) -> None:
        self._is_set.set()
        for other in self._others:
            other.set()

    def is_set(self) -> bool:
        return self._is_set.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is set, or so many seconds; whether it is."""
        return self._is_set.wait(timeout_s)

    def sets(self, other: threading.Event) -> None:
        """Set this event too, now or later."""
        self._others.append(other)
        if self.is_set():
            other.set()


class ExitRequest:
    """The request to end the process, made by any of its parts, with an exit code."""

    def __init__(self) -> None:
        self.code = EXIT_STOPPED
        self._is_requested = False
        self._is_over = threading.Event()

    def exit(self, code: int) -> None:
        """Request that the process ends with this code; only the first request counts. May be called from any thread."""
        if not self._is_requested:
            self.code, self._is_requested = code, True
            self._is_over.set()

    def wait(self, stopping: StopSignal) -> None:
        """Return when `stopping` is set or an exit was requested."""
        stopping.sets(self._is_over)
        self._is_over.wait()


class Resources:
    """What this process takes of the machine."""

    def __init__(self, counts_children: bool = False) -> None:
        """counts_children: whether what the processes take that it has started counts too, such as those of Spark: none of them
        has a status."""
        self._process = psutil.Process()
        self._process.cpu_percent()  # from now on
        self._counts_children = counts_children
        self._children: dict[psutil.Process, psutil.Process] = {}

    def share(self, roles: int) -> dict[str, Any]:
        """The fields of `deployment.status_fields.PROCESS` that say it, for one of so many roles that run in the process:
        nobody knows what each takes. Processor time since the last call."""
        if self._counts_children:
            # The same objects as before: each knows what its process had taken by then.
            found = self._process.children(recursive=True)
            self._children = {each: self._children.get(each, each) for each in found}
        bytes_, percent = 0, 0.0
        for each in (self._process, *self._children.values()):
            with suppress(psutil.NoSuchProcess):
                bytes_ += each.memory_info().rss
                percent += each.cpu_percent()
        return {"memory_bytes": bytes_ // max(roles, 1), "cores": round(percent / 100 / max(roles, 1), 4)}


class StatusDesk:
    """Publishes the statuses of a process's roles every second, those of calm roles every other second, and at once when one
    has changed, in one thread with one producer. A status is one JSON object under the role's name. Its `at_ms` is the wall
    clock at that moment, from which readers see whether the role is still alive. While the process is loaded, all of them are
    published as if they were calm, and what changes gathers: where a machine has too little time, roles change their state
    again and again, and each status is work for whoever reads it."""

    def __init__(self, cluster: Cluster, counts_children: bool = False, load: LoadDegree = lambda: 0) -> None:
        """counts_children: see `Resources`. load: of the process."""
        self._cluster = cluster
        self._load = load
        self._counts_children = counts_children
        self._changed = threading.Condition()
        self._publishers: dict[str, StatusPublisher] = {}
        self._due: set[str] = set()
        self._awaited: set[str] = set()
        self._ready: set[str] = set()
        self._making = threading.Lock()
        self._is_closed = False
        self._intervals = 0
        self._rests_until = 0.0
        self._thread: threading.Thread | None = None

    def add(self, publisher: StatusPublisher) -> None:
        """Publish this status from now on."""
        with self._changed:
            self._publishers[publisher.name] = publisher
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="status", daemon=True)
                self._thread.start()
        self.now(publisher.name)

    def remove(self, publisher: StatusPublisher) -> None:
        """Publish this status no more; returns when it is not being made. Another one of its name stays."""
        with self._making, self._changed:
            if self._publishers.get(publisher.name) is publisher:
                del self._publishers[publisher.name]
                self._ready.discard(publisher.name)

    def is_ready(self, name: str) -> bool:
        """Whether the last status of this name said that it is ready."""
        return name in self._ready

    def now(self, name: str) -> None:
        """Publish this status without waiting for the next second."""
        with self._changed:
            self._due.add(name)
            self._changed.notify_all()

    def deliver(self, name: str, within_s: float) -> None:
        """Publish this status now, and wait so long at most until Kafka has it: for what is said last."""
        with self._changed:
            self._due.add(name)
            self._awaited.add(name)
            self._changed.notify_all()
            self._changed.wait_for(lambda: name not in self._awaited or self._is_closed, within_s)
            self._awaited.discard(name)

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=2)

    def _run(self) -> None:
        producer: KafkaProducer | None = None
        resources = Resources(self._counts_children)
        taken: dict[str, Any] = {}
        all_at = time.monotonic()
        while (due := self._await_due(all_at)) is not None:
            try:
                if time.monotonic() >= all_at:
                    all_at, taken = time.monotonic() + STATUS_INTERVAL_S, resources.share(len(self._publishers))
                producer = producer or self._cluster.make_producer(patient=False)
                for publisher in due:
                    self._publish(publisher, producer, taken)
                self._maybe_flush(producer, due)
                _timekeeper.keep(producer)
            except (KafkaError, OSError) as error:
                log_retry(_logger, "the status cannot be published", error)
        if producer is not None:
            close_producer(producer, 1)

    def _await_due(self, all_at: float) -> list[StatusPublisher] | None:
        """The statuses to publish next: those that have changed, and, from this time on, those of all roles that are not calm,
        or of all. None once the desk is closed."""
        with self._changed:
            rest_s = self._rests_until - time.monotonic()
            self._changed.wait_for(lambda: self._is_urgent or self._is_closed, max(rest_s, 0))
            self._changed.wait_for(lambda: self._due or self._is_closed, max(all_at - time.monotonic(), 0))
            degree = self._load()
            self._rests_until = time.monotonic() + LOADED_RESTS_S[degree]
            due, self._due = self._due, set()
            if self._is_closed:
                return None
            if time.monotonic() < all_at:
                return [self._publishers[name] for name in due & self._publishers.keys()]
            self._intervals += 1
            if self._intervals % CALM_INTERVALS == 0:
                return list(self._publishers.values())
            return [each for name, each in self._publishers.items() if name in due or not (degree or each.is_calm())]

    @property
    def _is_urgent(self) -> bool:
        """Whether somebody waits for a status: of a role that begins, or ends."""
        return bool(self._awaited) or not self._due <= self._ready

    def _maybe_flush(self, producer: KafkaProducer, published: list[StatusPublisher]) -> None:
        with self._changed:
            awaited = self._awaited & {publisher.name for publisher in published}
        if awaited:
            producer.flush(timeout=1)
            with self._changed:
                self._awaited -= awaited
                self._changed.notify_all()

    def _publish(self, publisher: StatusPublisher, producer: KafkaProducer, taken: dict[str, Any]) -> None:
        with self._making:
            if self._publishers.get(publisher.name) is not publisher:
                return  # It was removed meanwhile.
            at_ms = round(time.time() * 1_000, 3)
            try:
                status = {**publisher.common, "at_ms": at_ms, **taken, **_timekeeper.status(), **publisher.make_status()}
                value = json.dumps(status, default=str).encode()
            except Exception:
                # Other threads change the same data meanwhile. This thread must continue: a process without a status counts as
                # dead.
                _logger.exception("the status of %s cannot be made now", publisher.name)
                return
            (self._ready.add if status.get("ready") else self._ready.discard)(publisher.name)
        producer.send(STATUS, value, key=publisher.name.encode(), partition=0)


class StatusPublisher:
    """Publishes one status, until it is closed; see `StatusDesk`."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        make_status: Callable[[], dict[str, Any]],
        desk: StatusDesk | None = None,
        is_calm: Callable[[], bool] = lambda: False,
    ) -> None:
        """make_status and is_calm, which says whether the role is calm, are called in the desk's thread. `kind` and `query` of
        the status are taken from the name. desk: the process's; None: the status gets its own, with a producer of this
        cluster."""
        kind, _, rest = name.partition(".")
        self.name = name
        self.make_status = make_status
        self.is_calm = is_calm
        self.common = {"v": 1, "process": name, "kind": kind, "query": rest.partition(".")[0] or None, "pid": os.getpid()}
        self._desk = desk or StatusDesk(cluster)
        self._has_own_desk = desk is None
        self._desk.add(self)

    def now(self) -> None:
        """Publish the status now, without waiting for the next second."""
        self._desk.now(self.name)

    def deliver(self, within_s: float = 1.0) -> None:
        """Publish the status now, and wait so long at most until Kafka has it."""
        self._desk.deliver(self.name, within_s)

    def close(self) -> None:
        self._desk.remove(self)
        if self._has_own_desk:
            self._desk.close()


def run_process(name: str, serve: Callable[[StopSignal], int]) -> None:
    """The main function of a service process: logging, signals, and the exit code of `serve(stopping)`.

    serve returns when `stopping` is set (SIGTERM, SIGINT) or when the process cannot continue. An exception is logged and ends
    the process with 1: the supervisor starts it again, and it continues from its logs.
    """
    set_up_logging(name)
    # Imported objects stay for good: the garbage collector need not look at them.
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    gc.enable()
    faulthandler.register(signal.SIGUSR1)
    stopping = StopSignal()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        code = serve(stopping)
    except Exception:
        _logger.exception("%s failed", name)
        code = 1
    # Not a normal exit, because client threads may hang on a cluster that is out of reach. Nothing is left to be written.
    sys.stderr.flush()
    os._exit(code)


class QueryProcess(Protocol):
    """One role of a query; `serve` runs until it is stopped or cannot continue, and returns the exit code of a process that
    runs only this role."""

    def serve(self, stopping: StopSignal) -> int: ...
