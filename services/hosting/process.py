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
from typing import Any, Protocol

from kafka import KafkaProducer
from kafka.errors import KafkaError

from services.hosting.log_lines import set_up_logging
from services.kafka.clusters import Cluster, close_producer, log_retry
from services.kafka.settings import ServiceSettings, load_settings
from services.kafka.timekeeper import Timekeeper
from services.kafka.topics import STATUS

EXIT_STOPPED = 0
EXIT_FENCED = 3
"""Another incarnation of this process has begun (R25)."""
EXIT_BEGIN_ANEW = 4
"""The log entries that it had to read are gone; it restarts from what the logs still hold (R27)."""

STATUS_INTERVAL_S = 1.0

THREAD_SWITCH_S = 0.0005
"""Readers, instances and producers share an interpreter: with the default of 5 ms a frame could wait as long as a whole hop
takes."""

_logger = logging.getLogger("boreal.process")


_timekeeper = Timekeeper()


def now_us() -> int:
    """The services' clock: microseconds since the epoch, an estimate of the clock of the home site's broker. It is monotonic
    and does not jump while the process lives."""
    return _timekeeper.now_us()


def set_clock(settings: ServiceSettings, name: str) -> None:
    """Set the process's clock. Must be called before the process stamps anything: its times must agree with those of others."""
    _timekeeper.begin(Cluster(settings.home, settings, name))


class ExitRequest:
    """The request to end the process, made by any of its parts, with an exit code."""

    def __init__(self) -> None:
        self.code = EXIT_STOPPED
        self._is_due = threading.Event()

    def exit(self, code: int) -> None:
        """Request that the process ends with this code; only the first request counts. May be called from any thread."""
        if not self._is_due.is_set():
            self.code = code
            self._is_due.set()

    def wait(self, stopping: threading.Event) -> None:
        """Return when `stopping` is set or an exit was requested."""
        while not stopping.is_set() and not self._is_due.is_set():
            stopping.wait(0.1)


class StatusPublisher:
    """Publishes a process's status every second, and at once on `now`: one JSON object under the process's name. Its `at_ms` is
    the wall clock at that moment, from which readers see whether the process is still alive."""

    def __init__(self, cluster: Cluster, name: str, make_status: Callable[[], dict[str, Any]]) -> None:
        """make_status is called in the publisher's thread. `kind` and `query` of the status are taken from the name."""
        self._cluster = cluster
        self._name = name
        self._make_status = make_status
        self._wake = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)
        self._thread.start()

    def now(self) -> None:
        """Publish the status now, without waiting for the next second."""
        self._wake.set()

    def close(self) -> None:
        self._is_closed = True
        self._wake.set()
        self._thread.join(timeout=2)

    def _run(self) -> None:
        producer: KafkaProducer | None = None
        kind, _, rest = self._name.partition(".")
        common = {"v": 1, "process": self._name, "kind": kind, "query": rest.partition(".")[0] or None, "pid": os.getpid()}
        while not self._is_closed:
            try:
                at_ms = round(time.time() * 1_000, 3)
                status = {**common, "at_ms": at_ms, **_timekeeper.status(), **self._make_status()}
                producer = producer or self._cluster.make_producer(patient=False)
                producer.send(STATUS, json.dumps(status, default=str).encode(), key=self._name.encode(), partition=0)
                _timekeeper.keep(producer)
            except (KafkaError, OSError) as error:
                log_retry(_logger, "the status cannot be published", error)
            except Exception:
                # Other threads change the same data meanwhile. This thread must continue: a process without a status counts as
                # dead.
                _logger.exception("the status cannot be made now")
            self._wake.wait(STATUS_INTERVAL_S)
            self._wake.clear()
        if producer is not None:
            close_producer(producer, 1)


def run_process(name: str, serve: Callable[[threading.Event], int]) -> None:
    """The main function of a service process: logging, signals, and the exit code of `serve(stopping)`.

    serve returns when `stopping` is set (SIGTERM, SIGINT) or when the process cannot continue. An exception is logged and ends
    the process with 1: the supervisor starts it again, and it continues from its logs.
    """
    set_up_logging(name)
    # Imported objects stay for good: the garbage collector need not look at them.
    gc.freeze()
    gc.enable()
    faulthandler.register(signal.SIGUSR1)
    stopping = threading.Event()
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
    """One process of a query; `serve` runs until it is stopped or cannot continue, and returns the exit code."""

    def serve(self, stopping: threading.Event) -> int: ...


def run_query_process(kind: str, make: Callable[[ServiceSettings, str, str, str], QueryProcess]) -> None:
    """The main function of a process whose arguments are a query and a part of it, such as a replica: see `run_process`.
    make(settings, name, query, part) is called after logging, signals and the clock are set up."""
    query, part = sys.argv[1:]
    name = f"{kind}.{query}.{part}"

    def serve(stopping: threading.Event) -> int:
        settings = load_settings()
        set_clock(settings, name)
        return make(settings, name, query, part).serve(stopping)

    run_process(name, serve)
