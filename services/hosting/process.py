"""What every service process does alike: its clock, its log, how it is told to stop, and what it says of itself."""

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

from services.kafka.clusters import Cluster, close_producer, log_retry
from services.kafka.settings import ServiceSettings, load_settings
from services.kafka.timekeeper import Timekeeper
from services.kafka.topics import STATUS

EXIT_STOPPED = 0
EXIT_FENCED = 3
"""Another life of this process has begun (R25)."""
EXIT_BEGIN_ANEW = 4
"""What it was about to read is gone, and it begins again from what there is (R27)."""

STATUS_INTERVAL_S = 1.0

THREAD_SWITCH_S = 0.0005
"""Readers, instances and producers share an interpreter: with its usual 5 ms a frame could wait as long as a hop takes."""

_logger = logging.getLogger("boreal.process")


_timekeeper = Timekeeper()


def now_us() -> int:
    """The services' clock: microseconds since the epoch, by the home site's broker as well as it can be measured. It neither
    jumps nor goes back while the process lives."""
    return _timekeeper.now_us()


def set_clock(settings: ServiceSettings, name: str) -> None:
    """The first thing that a process does: what it stamps later has to fit what others stamp."""
    _timekeeper.begin(Cluster(settings.home, settings, name))


class Ending:
    """How a process comes to its end: it is told to, or a part of it says that it can go on no more."""

    def __init__(self) -> None:
        self.code = EXIT_STOPPED
        self._is_due = threading.Event()

    def exit(self, code: int) -> None:
        """From any thread: the process is to end with this code; the first one counts."""
        if not self._is_due.is_set():
            self.code = code
            self._is_due.set()

    def wait(self, stopping: threading.Event) -> None:
        """Returns once it is time."""
        while not stopping.is_set() and not self._is_due.is_set():
            stopping.wait(0.1)


class StatusPublisher:
    """Says every second, and at once on `now`, how a process is: one JSON object under the process's name. Its `at_ms` is
    of the wall clock as it is then, by which others see whether a process still speaks."""

    def __init__(self, cluster: Cluster, name: str, make_status: Callable[[], dict[str, Any]]) -> None:
        """make_status is called in the publisher's thread. `kind` and `query` of the status follow from the name."""
        self._cluster = cluster
        self._name = name
        self._make_status = make_status
        self._wake = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)
        self._thread.start()

    def now(self) -> None:
        """Something has changed: say so without waiting for the next second."""
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
                # Other threads change meanwhile what it tells of. A process that says no more counts as dead.
                _logger.exception("no status can be made now")
            self._wake.wait(STATUS_INTERVAL_S)
            self._wake.clear()
        if producer is not None:
            close_producer(producer, 1)


def run_process(name: str, serve: Callable[[threading.Event], int]) -> None:
    """The main function of a service process: logging, signals, and the exit code of `serve(stopping)`.

    serve returns when `stopping` is set (SIGTERM, SIGINT) or when it can go on no more. An exception is logged and ends
    the process with 1: the supervisor starts it again, and its logs tell it where it was.
    """
    logging.basicConfig(
        level=os.environ.get("BOREAL_LOG_LEVEL", "INFO"),
        format=f"%(asctime)s %(levelname)s {name} %(name)s: %(message)s",
        stream=sys.stderr,
    )
    # What was imported stays for good, and need not be looked through for garbage.
    gc.freeze()
    gc.enable()
    faulthandler.register(signal.SIGUSR1)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        code = serve(stopping)
    except Exception:
        _logger.exception("%s cannot go on", name)
        code = 1
    # Client threads may hang on a cluster that is out of reach; all that must outlast us has been written.
    sys.stderr.flush()
    os._exit(code)


class Part(Protocol):
    """One process of a query; `serve` runs until it is stopped or can go on no more, and returns the exit code."""

    def serve(self, stopping: threading.Event) -> int: ...


def run_part(kind: str, make: Callable[[ServiceSettings, str, str, str], Part]) -> None:
    """The main function of a process that is called with a query and a part of it, such as a replica: see `run_process`.
    make(settings, name, query, part) is called once logging, signals and the clock are as they should be."""
    query, part = sys.argv[1:]
    name = f"{kind}.{query}.{part}"

    def serve(stopping: threading.Event) -> int:
        settings = load_settings()
        set_clock(settings, name)
        return make(settings, name, query, part).serve(stopping)

    run_process(name, serve)
